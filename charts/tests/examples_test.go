package charttests

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/queenmq/queen/charts/tests/internal/manifest"
)

// Objects among the examples are as strictly read as those of the chart, but for kinds of
// CloudNativePG, whose types would bring its whole operator along: of these, the few fields
// that the examples use are known here.
func TestObjectsAmongTheExamplesAreKnown(t *testing.T) {
	t.Parallel()
	var found int
	for _, file := range yamlFiles(t, "examples") {
		if slices.Contains(valuesFiles(t), file) {
			continue
		}
		found++
		content, err := os.ReadFile(file)
		require.NoError(t, err)
		var others []string
		for document := range strings.SplitSeq("\n"+string(content), "\n---\n") {
			if strings.Contains(document, "\napiVersion: postgresql.cnpg.io/v1\n") {
				require.NoError(t, yaml.UnmarshalStrict([]byte(document), &cluster{}), file)
			} else {
				others = append(others, document)
			}
		}
		_, err = manifest.Parse(strings.Join(others, "\n---\n"))
		require.NoError(t, err, file)
	}
	require.Positive(t, found)
}

// cluster is what examples say of a Cluster of CloudNativePG 1.2x.
type cluster struct {
	APIVersion string         `json:"apiVersion"`
	Kind       string         `json:"kind"`
	Metadata   map[string]any `json:"metadata"`
	Spec       struct {
		Instances   int                         `json:"instances"`
		ImageName   string                      `json:"imageName"`
		Description string                      `json:"description"`
		Storage     storage                     `json:"storage"`
		WALStorage  storage                     `json:"walStorage"`
		Resources   corev1.ResourceRequirements `json:"resources"`
		Affinity    struct {
			EnablePodAntiAffinity *bool  `json:"enablePodAntiAffinity"`
			TopologyKey           string `json:"topologyKey"`
			PodAntiAffinityType   string `json:"podAntiAffinityType"`
		} `json:"affinity"`
		PostgreSQL struct {
			Parameters  map[string]string `json:"parameters"`
			Synchronous struct {
				Method         string `json:"method"`
				Number         int    `json:"number"`
				DataDurability string `json:"dataDurability"`
			} `json:"synchronous"`
		} `json:"postgresql"`
		Bootstrap struct {
			InitDB struct {
				Database               string                      `json:"database"`
				Owner                  string                      `json:"owner"`
				Secret                 corev1.LocalObjectReference `json:"secret"`
				DataChecksums          bool                        `json:"dataChecksums"`
				PostInitApplicationSQL []string                    `json:"postInitApplicationSQL"`
			} `json:"initdb"`
		} `json:"bootstrap"`
		PrimaryUpdateStrategy string `json:"primaryUpdateStrategy"`
		PrimaryUpdateMethod   string `json:"primaryUpdateMethod"`
		EnablePDB             *bool  `json:"enablePDB"`
		Monitoring            struct {
			EnablePodMonitor bool `json:"enablePodMonitor"`
		} `json:"monitoring"`
		Managed map[string]any `json:"managed"`
	} `json:"spec"`
}

type storage struct {
	Size               string `json:"size"`
	StorageClass       string `json:"storageClass"`
	ResizeInUseVolumes *bool  `json:"resizeInUseVolumes"`
}
