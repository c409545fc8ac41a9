// Package buildinfo tells which build this is.
package buildinfo

import "runtime/debug"

// version is set by the linker (-X .../buildinfo.version=v1.2.3).
//
//nolint:gochecknoglobals // the linker sets only package variables
var version string

// Version is the release, or "devel" for a build that names none.
func Version() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
		return info.Main.Version
	}
	return "devel"
}

// Commit is the revision the binary was built from, or "".
func Commit() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			return s.Value
		}
	}
	return ""
}
