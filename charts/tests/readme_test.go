package charttests

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/charts/tests/internal/helm"
	"github.com/queenmq/queen/charts/tests/internal/manifest"
)

const root = "../.."

// readmes say how Queen is installed.
var readmes = []string{"README.md", "charts/README.md", "charts/queen/README.md"}

// Whoever copies a command has to get what it promises.
func TestCommandsOfReadmesRender(t *testing.T) {
	t.Parallel()
	for _, file := range readmes {
		var before []string
		for _, command := range helmCommands(t, file) {
			args := rendering(command, before)
			before = args
			t.Run(strings.Join(command, " "), func(t *testing.T) {
				t.Parallel()
				text, err := helm.Run("", args...)
				require.NoError(t, err, file)
				objects, err := manifest.Parse(text)
				require.NoError(t, err)
				require.NotEmpty(t, objects.Pods())
			})
		}
		require.NotEmpty(t, before, "%s has no command that installs the chart", file)
	}
}

// helmCommands are the commands with the chart in a file's shell blocks, as the words that
// a shell makes of them.
func helmCommands(t *testing.T, file string) [][]string {
	t.Helper()
	var commands [][]string
	oneLine := regexp.MustCompile(`(?m)^helm .*charts/queen( .*)?$`)
	for _, block := range shellBlocks(t, file) {
		for _, line := range oneLine.FindAllString(strings.ReplaceAll(block, "\\\n", ""), -1) {
			words, err := exec.Command("sh", "-c", `helm() { printf '%s\n' "$@"; }; `+line).Output()
			require.NoError(t, err, line)
			commands = append(commands, strings.Split(strings.TrimSpace(string(words)), "\n"))
		}
	}
	return commands
}

func shellBlocks(t *testing.T, file string) []string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, file))
	require.NoError(t, err)
	var blocks []string
	for _, match := range regexp.MustCompile("(?s)\n```sh\n(.*?)\n```").FindAllStringSubmatch(string(text), -1) {
		blocks = append(blocks, match[1])
	}
	return blocks
}

// rendering is `helm template` with the values of an installation or upgrade. One that
// reuses values goes on with those of the command before.
func rendering(command, before []string) []string {
	args := []string{"template", "--api-versions", strings.Join(operators, ",")}
	for _, word := range command[1:] {
		switch word {
		case "--install":
		case "--reuse-values", "--reset-then-reuse-values":
			args = append(args, before[5:]...) // after the release and the chart
		default:
			args = append(args, regexp.MustCompile(`^charts/`).ReplaceAllString(word, "../"))
		}
	}
	return args
}

// A path that is named in a command, or a link, has to be there.
func TestPathsOfReadmesExist(t *testing.T) {
	t.Parallel()
	inCommand := regexp.MustCompile(`charts/queen/[a-z/.-]+\.yaml`)
	inLink := regexp.MustCompile(`\]\(([^):#]+)(#[^)]*)?\)`)
	for _, file := range readmes {
		for _, block := range shellBlocks(t, file) {
			for _, path := range inCommand.FindAllString(block, -1) {
				require.FileExists(t, filepath.Join(root, path), file)
			}
		}
		text, err := os.ReadFile(filepath.Join(root, file))
		require.NoError(t, err)
		for _, match := range inLink.FindAllStringSubmatch(string(text), -1) {
			_, err := os.Stat(filepath.Join(root, filepath.Dir(file), match[1]))
			require.NoError(t, err, file)
		}
	}
}
