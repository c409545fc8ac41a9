package manifest

import (
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// Pod is what pods of an object look like.
type Pod struct {
	Owner    string // as Object.Name
	Kind     string // of the owner
	Service  bool   // it runs for good
	Meta     metav1.ObjectMeta
	Spec     corev1.PodSpec
	Selector *metav1.LabelSelector // of the owner
	Replicas *int32                // of the owner
	Volumes  []string              // that the owner claims for each pod
}

// Pods returns the pods of all objects that make some.
func (o Objects) Pods() []Pod {
	var pods []Pod
	for _, object := range o {
		pod := Pod{Owner: object.Name(), Kind: object.Kind, Service: true}
		switch typed := object.Object.(type) {
		case *appsv1.Deployment:
			pod.Meta, pod.Spec = typed.Spec.Template.ObjectMeta, typed.Spec.Template.Spec
			pod.Selector, pod.Replicas = typed.Spec.Selector, typed.Spec.Replicas
		case *appsv1.StatefulSet:
			pod.Meta, pod.Spec = typed.Spec.Template.ObjectMeta, typed.Spec.Template.Spec
			pod.Selector, pod.Replicas = typed.Spec.Selector, typed.Spec.Replicas
			for i := range typed.Spec.VolumeClaimTemplates {
				pod.Volumes = append(pod.Volumes, typed.Spec.VolumeClaimTemplates[i].Name)
			}
		case *batchv1.Job:
			pod.Meta, pod.Spec, pod.Service = typed.Spec.Template.ObjectMeta, typed.Spec.Template.Spec, false
		case *corev1.Pod:
			pod.Meta, pod.Spec, pod.Service = typed.ObjectMeta, typed.Spec, false
		default:
			continue
		}
		pods = append(pods, pod)
	}
	return pods
}

// Pod returns the pods of one component: broker, maintainer, sweeper, schema or check.
func (o Objects) Pod(component string) (Pod, bool) {
	pods := o.Pods()
	i := slices.IndexFunc(pods, func(p Pod) bool { return p.Component() == component })
	if i < 0 {
		return Pod{}, false
	}
	return pods[i], true
}

// Component is the label of the pod that says what it is.
func (p Pod) Component() string { return p.Meta.Labels["app.kubernetes.io/component"] }

// Matches tells whether a selector selects the pod. One that is not there selects nothing.
func (p Pod) Matches(selector *metav1.LabelSelector) bool {
	if selector == nil {
		return false
	}
	parsed, err := metav1.LabelSelectorAsSelector(selector)
	return err == nil && parsed.Matches(labels.Set(p.Meta.Labels))
}

// Port returns the number of a port of the pod by its name.
func (p Pod) Port(name string, protocol corev1.Protocol) (int32, bool) {
	for i := range p.Spec.Containers {
		for _, port := range p.Spec.Containers[i].Ports {
			if port.Name == name && port.Protocol == protocol {
				return port.ContainerPort, true
			}
		}
	}
	return 0, false
}

// Env returns the variables of the container that runs the product.
func (p Pod) Env() map[string]corev1.EnvVar {
	variables := map[string]corev1.EnvVar{}
	for _, variable := range p.Spec.Containers[0].Env {
		variables[variable.Name] = variable
	}
	return variables
}
