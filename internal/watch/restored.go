package watch

import (
	"context"
	"fmt"
	"strconv"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// checkVersion returns an error if the API server has not reached the version from which a watch continues, because it was restored from
// a backup. Such a server would accept the watch but send nothing, not even bookmarks, until it reaches that version. Changes before that
// version would be lost. After this error, the reflector lists again.
//
// The check lists one object without a version, so that the response never comes from a stale cache.
func (a *API) checkVersion(ctx context.Context, f *feed, from string) error {
	known, err := strconv.ParseUint(from, 10, 64)
	if err != nil || known == 0 {
		return nil // the watch itself begins with a list
	}
	ctx, cancel := context.WithTimeout(ctx, a.timing.dial)
	defer cancel()
	list, err := f.client.Get().Resource(f.resource).VersionedParams(&metav1.ListOptions{Limit: 1}, metav1.ParameterCodec).
		MaxRetries(0).Do(ctx).Get()
	if err != nil {
		return nil // the watch itself will also return the error
	}
	response, err := meta.ListAccessor(list)
	if err != nil {
		return nil
	}
	newest, err := strconv.ParseUint(response.GetResourceVersion(), 10, 64)
	if err != nil || newest >= known {
		return nil
	}
	return fmt.Errorf("the API server's resource version went back from %d to %d, so it was restored from a backup; listing all %s again", known, newest, f.resource)
}
