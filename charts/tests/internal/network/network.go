// Package network tells what network policies let through, as Kubernetes does: a pod that
// no policy selects is open, and any other is closed but for what one of them allows.
package network

import (
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// Place is one end of a connection: a pod, or an address outside of the cluster.
type Place struct {
	Namespace string            // the label kubernetes.io/metadata.name; "" outside
	Extra     map[string]string // further labels of the namespace
	Labels    map[string]string // of the pod
	Address   string            // outside
}

// Port is where a connection goes.
type Port struct {
	Number   int32
	Protocol corev1.Protocol
}

// Egress tells whether policies, which are in the namespace of from, let it reach a port of to.
func Egress(policies []*networkingv1.NetworkPolicy, from, to Place, port Port) bool {
	open := true
	for _, policy := range policies {
		if !applies(policy, from, networkingv1.PolicyTypeEgress) {
			continue
		}
		open = false
		for _, rule := range policy.Spec.Egress {
			if anyPeer(rule.To, from.Namespace, to) && anyPort(rule.Ports, port) {
				return true
			}
		}
	}
	return open
}

// Ingress tells whether policies, which are in the namespace of to, let from reach a port of it.
func Ingress(policies []*networkingv1.NetworkPolicy, from, to Place, port Port) bool {
	open := true
	for _, policy := range policies {
		if !applies(policy, to, networkingv1.PolicyTypeIngress) {
			continue
		}
		open = false
		for _, rule := range policy.Spec.Ingress {
			if anyPeer(rule.From, to.Namespace, from) && anyPort(rule.Ports, port) {
				return true
			}
		}
	}
	return open
}

func applies(policy *networkingv1.NetworkPolicy, pod Place, way networkingv1.PolicyType) bool {
	for _, named := range policy.Spec.PolicyTypes {
		if named == way {
			return selects(&policy.Spec.PodSelector, pod.Labels)
		}
	}
	return false
}

// anyPeer takes no peers for all of them, as Kubernetes does.
func anyPeer(peers []networkingv1.NetworkPolicyPeer, namespace string, place Place) bool {
	for _, peer := range peers {
		if isPeer(peer, namespace, place) {
			return true
		}
	}
	return len(peers) == 0
}

func isPeer(peer networkingv1.NetworkPolicyPeer, namespace string, place Place) bool {
	if peer.IPBlock != nil {
		return place.Address != "" && netip.MustParsePrefix(peer.IPBlock.CIDR).Contains(netip.MustParseAddr(place.Address))
	}
	if place.Address != "" {
		return false
	}
	if peer.NamespaceSelector == nil {
		return place.Namespace == namespace && selects(peer.PodSelector, place.Labels)
	}
	if !selects(peer.NamespaceSelector, place.namespaceLabels()) {
		return false
	}
	return peer.PodSelector == nil || selects(peer.PodSelector, place.Labels)
}

func (p Place) namespaceLabels() map[string]string {
	all := map[string]string{corev1.LabelMetadataName: p.Namespace}
	for key, value := range p.Extra {
		all[key] = value
	}
	return all
}

// anyPort takes no ports for all of them, as Kubernetes does.
func anyPort(ports []networkingv1.NetworkPolicyPort, port Port) bool {
	for _, one := range ports {
		protocol := corev1.ProtocolTCP
		if one.Protocol != nil {
			protocol = *one.Protocol
		}
		if protocol == port.Protocol && (one.Port == nil || one.Port.IntVal == port.Number) {
			return true
		}
	}
	return len(ports) == 0
}

func selects(selector *metav1.LabelSelector, set map[string]string) bool {
	parsed, err := metav1.LabelSelectorAsSelector(selector)
	return err == nil && parsed.Matches(labels.Set(set))
}
