package chart

import (
	"maps"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"helm.sh/helm/v4/pkg/action"
	chartv2 "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/kube"
	release "helm.sh/helm/v4/pkg/release/v1"
)

// versioned returns the chart with the given version.
func versioned(t *testing.T, version string) *chartv2.Chart {
	c := load(t)
	c.Metadata.Version, c.Metadata.AppVersion = version, "v"+version
	return c
}

// testReleases installs a release with each preset, upgrades it to the next release (docs/compatibility.md), and rolls it back. The two releases
// differ only in their version.
func (s *apiServer) testReleases(t *testing.T) {
	all := map[string]values{"set by users": parse(t, `{config: {clusterCIDR: 10.244.0.0/16, ipvs: {scheduler: wrr}}, podLabels: {team: network},
		metrics: {bindAddress: 0.0.0.0, service: {enabled: true}, dashboard: {enabled: true}}}`)}
	for name, m := range plain(t) {
		all[name] = m.values
	}
	for name, v := range all {
		t.Run(name, func(t *testing.T) {
			install := action.NewInstall(s.helm)
			install.ReleaseName, install.Namespace, install.WaitStrategy = releaseName, namespace, kube.HookOnlyStrategy
			if _, err := install.RunWithContext(t.Context(), versioned(t, "0.98.0"), maps.Clone(v)); err != nil {
				t.Fatal(err)
			}
			defer s.uninstall(t)
			before := s.manifest(t)
			upgrade := action.NewUpgrade(s.helm)
			upgrade.Namespace, upgrade.WaitStrategy, upgrade.ResetThenReuseValues = namespace, kube.HookOnlyStrategy, true
			if _, err := upgrade.RunWithContext(t.Context(), releaseName, versioned(t, "0.99.0"), values{}); err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(strings.ReplaceAll(before, "0.98.0", "0.99.0"), s.manifest(t)); d != "" {
				t.Errorf("after the upgrade (-want +got):\n%s", d)
			}
			rollback := action.NewRollback(s.helm)
			rollback.WaitStrategy = kube.HookOnlyStrategy
			if err := rollback.Run(releaseName); err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(before, s.manifest(t)); d != "" {
				t.Errorf("after the rollback (-want +got):\n%s", d)
			}
		})
	}
}

// manifest returns the objects of the installed release.
func (s *apiServer) manifest(t *testing.T) string {
	t.Helper()
	r, err := action.NewGet(s.helm).Run(releaseName)
	if err != nil {
		t.Fatal(err)
	}
	rel, ok := r.(*release.Release)
	if !ok {
		t.Fatalf("helm returned a release of type %T", r)
	}
	return rel.Manifest
}
