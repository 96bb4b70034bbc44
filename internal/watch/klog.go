package watch

import (
	"github.com/go-logr/zapr"
	"go.uber.org/zap"
	"k8s.io/klog/v2"
)

// RedirectKlog sends the log of the Kubernetes client libraries to z. Call it once, before anything uses these libraries: klog
// keeps its logger in a global variable without a lock.
//
// klog's warnings are logged at level info, and V(n) at zap's level -n: V(1) is debug, and lower levels require an encoder that
// has names for them. Do not use a sampling logger, because it would drop the repeated entries that indicate a problem.
func RedirectKlog(z *zap.Logger) {
	klog.SetLoggerWithOptions(zapr.NewLoggerWithOptions(z.Named("client-go"), zapr.LogInfoLevel("v")), klog.ContextualLogger(true))
}
