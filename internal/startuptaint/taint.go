// Package startuptaint removes the taint that keeps pods off a new node until its Services work.
//
// May import: watch, for the types of the API, and Kubernetes' client.
package startuptaint

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/kube-ipvs/kube-ipvs/internal/watch"
)

// Key is the taint's key. Its effect and value are the operator's choice.
const Key = "kube-ipvs.io/agent-not-ready"

var errNoNode = errors.New("the Node object does not exist")

// Node is the Node object of one node.
type Node struct {
	name string
	api  rest.Interface
}

// Of returns the Node object of a node.
func Of(name string, config *rest.Config) (*Node, error) {
	config = rest.CopyConfig(config)
	config.APIPath, config.GroupVersion = "/api", &v1.SchemeGroupVersion
	config.NegotiatedSerializer = serializer.NewCodecFactory(watch.NewScheme()).WithoutConversion()
	config.ContentType, config.AcceptContentTypes = runtime.ContentTypeJSON, runtime.ContentTypeJSON
	api, err := rest.RESTClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("open a client for node %s: %w", name, err)
	}
	return &Node{name, api}, nil
}

// operation is an operation of a JSON patch.
type operation struct {
	Op    string    `json:"op"`
	Path  string    `json:"path"`
	Value *v1.Taint `json:"value,omitempty"`
}

// Remove removes the taint, and reports whether the node had it. It fails if another program changes the taints at the same time.
func (n *Node) Remove(ctx context.Context) (removed bool, err error) {
	node, err := n.get(ctx)
	if err != nil {
		return false, err
	}
	patch := removal(node.Spec.Taints)
	if len(patch) == 0 {
		return false, nil
	}
	body, err := json.Marshal(patch)
	if err == nil {
		err = n.api.Patch(types.JSONPatchType).Resource("nodes").Name(n.name).Body(body).Do(ctx).Error()
	}
	if err != nil {
		return false, fmt.Errorf("remove the taint %s from node %s: %w", Key, n.name, err)
	}
	return true, nil
}

// get lists Nodes with a field selector, because the agent may have permission to list Nodes, but not to get a single Node.
func (n *Node) get(ctx context.Context) (*v1.Node, error) {
	var found v1.NodeList
	err := n.api.Get().Resource("nodes").Param("fieldSelector", "metadata.name="+n.name).Do(ctx).Into(&found)
	if err == nil && len(found.Items) == 0 {
		err = errNoNode
	}
	if err != nil {
		return nil, fmt.Errorf("read the taints of node %s: %w", n.name, err)
	}
	return &found.Items[0], nil
}

// removal returns a patch that removes the last taint first, so that the indexes of the others stay valid. The test operations make the patch fail
// if the list of taints has changed.
func removal(taints []v1.Taint) (patch []operation) {
	for i := len(taints) - 1; i >= 0; i-- {
		if taints[i].Key == Key {
			at := fmt.Sprintf("/spec/taints/%d", i)
			patch = append(patch, operation{Op: "test", Path: at, Value: &taints[i]}, operation{Op: "remove", Path: at})
		}
	}
	return patch
}
