package buildinfo

import "runtime/debug"

// Set by the linker: -X .../buildinfo.version=v1.2.3 and .commit=<revision>. An
// image is often built without the repository, where only these can tell.
//
//nolint:gochecknoglobals // the linker sets only package variables
var version, commit string

// Version is the release, or "devel" for a build that names none.
func Version() string { return versionOf(version, read()) }

// Commit is the revision the binary was built from, with "-dirty" when the tree
// had changes, or "" when nothing tells.
func Commit() string { return commitOf(commit, read()) }

// read is empty, not nil, for a binary without build information.
func read() *debug.BuildInfo {
	if info, ok := debug.ReadBuildInfo(); ok {
		return info
	}
	return new(debug.BuildInfo)
}

func versionOf(linked string, info *debug.BuildInfo) string {
	switch {
	case linked != "":
		return linked
	case info.Main.Version == "" || info.Main.Version == "(devel)":
		return "devel"
	}
	return info.Main.Version
}

func commitOf(linked string, info *debug.BuildInfo) string {
	if linked != "" {
		return linked
	}
	revision, suffix := "", ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			revision = s.Value
		case s.Key == "vcs.modified" && s.Value == "true":
			suffix = "-dirty"
		}
	}
	if revision == "" {
		return ""
	}
	return revision + suffix
}
