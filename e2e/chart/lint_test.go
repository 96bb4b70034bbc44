package chart

import (
	"regexp"
	"testing"

	"helm.sh/helm/v4/pkg/chart/v2/lint"
	"helm.sh/helm/v4/pkg/chart/v2/lint/support"
)

func TestLint(t *testing.T) {
	for name, v := range map[string]values{
		"defaults":   {},
		"kubeadm":    presets(t, "kubeadm", "take-over"),
		"everything": parse(t, everything),
	} {
		for _, m := range lint.RunAll(chartDir, v, namespace, lint.WithKubeVersion(cluster)).Messages {
			// The lowest severity is for recommendations, such as adding an icon.
			if m.Severity > support.InfoSev {
				t.Errorf("%s: %v", name, m)
			}
		}
	}
}

// TestVersions: the chart, the agent and the default image have the same version.
func TestVersions(t *testing.T) {
	meta := load(t).Metadata
	if !regexp.MustCompile(`^\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?$`).MatchString(meta.Version) {
		t.Errorf("version %q: want MAJOR.MINOR.PATCH", meta.Version)
	}
	if meta.AppVersion != "v"+meta.Version {
		t.Errorf("appVersion %q: want v%s, because chart and agent are released together", meta.AppVersion, meta.Version)
	}
	image := daemonSet(t, values{}).Spec.Template.Spec.Containers[0].Image
	if want := "kube-ipvs/kube-ipvs:" + meta.AppVersion; image != want {
		t.Errorf("default image %q, want %q", image, want)
	}
}
