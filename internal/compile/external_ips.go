package compile

import (
	"fmt"

	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// externalIPsEnd is the first version of Kubernetes in which kube-proxy does not serve spec.externalIPs by default, because its feature gate
// AllowServiceExternalIPs is off (https://kep.k8s.io/5707).
var externalIPsEnd = model.Version{Major: 1, Minor: 40}

// kubernetesVersions are versions of the API server. While they are unknown, the agent serves external IPs (I15).
type kubernetesVersions struct {
	// oldest is the oldest version since the agent started. It decides whether the agent serves external IPs. An upgrade of the
	// API server therefore does not remove them from all nodes at the same moment, and two API servers with different versions do not turn them on
	// and off.
	oldest model.Version
	latest model.Version
}

func (c *Cluster) learnVersion(v model.Version) {
	before := c.node.versions
	if before.oldest == (model.Version{}) || v.Compare(before.oldest) < 0 {
		c.node.versions.oldest = v
	}
	c.node.versions.latest = v
	if c.node.versions != before {
		c.affects(func(svc *model.Service) bool { return len(svc.ExternalIPs) > 0 })
	}
}

func endsExternalIPs(v model.Version) bool { return v.Compare(externalIPsEnd) >= 0 }

// withoutExternalIPs returns the reason why the agent does not serve external IPs, or nil if it serves them.
func (n *nodeContext) withoutExternalIPs() *refusal {
	switch {
	case n.ExternalIPs.Off:
		return &refusal{"external IPs are disabled in this cluster", "use a Service of type LoadBalancer or NodePort"}
	case n.ExternalIPs.ByVersion && endsExternalIPs(n.versions.oldest):
		return &refusal{
			fmt.Sprintf("the API server's version is %s, and since %s, external IPs are disabled by default", n.versions.oldest, externalIPsEnd), keepExternalIP,
		}
	}
	return nil
}

const keepExternalIP = "use a Service of type LoadBalancer with this address in its status, or set externalIPs.allow to true in the agent's configuration"

// objectionToNewVersion warns that an external IP will not be served after a restart of the agent.
func (n *nodeContext) objectionToNewVersion(f frontend) *objection {
	if !n.ExternalIPs.ByVersion || !endsExternalIPs(n.versions.latest) {
		return nil
	}
	return &objection{refusal{
		fmt.Sprintf("only until the agent on this node restarts: the API server's version is now %s, and since %s, external IPs are disabled by default",
			n.versions.latest, externalIPsEnd), keepExternalIP,
	}, warns, f.key.Addr.Addr().String()}
}
