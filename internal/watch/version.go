package watch

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"go.uber.org/zap"
	"k8s.io/apimachinery/pkg/version"

	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// learnVersion asks the API server for its version after each list of Services and each start of a watch. The agent therefore learns the version
// before the first Services reach the model, and asks again after the API server has restarted. If the API server does not answer, the last known
// version stays (I15). Kubernetes lets every authenticated client read the version.
func (a *API) learnVersion(ctx context.Context, f *feed) {
	if f.kind != model.KindService {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, a.timing.dial)
	defer cancel()
	answer, err := f.client.Get().AbsPath("/version").MaxRetries(0).Do(ctx).Raw()
	var v model.Version
	if err == nil {
		v, err = parseVersion(answer)
	}
	if err != nil {
		a.options.Logger.Debug("reading the API server's version failed; keeping the last known version", zap.Error(err))
		return
	}
	if a.setVersion(v) {
		a.options.Logger.Info("read the API server's version", zap.Stringer("version", v))
	}
}

// parseVersion reads the answer to /version. Some distributions append a plus sign to the minor version.
func parseVersion(answer []byte) (v model.Version, err error) {
	var info version.Info
	if err := json.Unmarshal(answer, &info); err != nil {
		return v, fmt.Errorf("read the API server's version: %w", err)
	}
	v.Major, err = strconv.Atoi(info.Major)
	if err == nil {
		v.Minor, err = strconv.Atoi(strings.TrimRight(info.Minor, "+"))
	}
	if err != nil || v.Major < 1 || v.Minor < 0 {
		return model.Version{}, fmt.Errorf("read the API server's version: %q.%q is not a version", info.Major, info.Minor)
	}
	return v, nil
}
