package watch

import (
	"github.com/go-logr/zapr"
	"go.uber.org/zap"
	"k8s.io/klog/v2"
)

// RedirectKlog sends the log of the Kubernetes client libraries to z. It must be called once, before anything uses them:
// klog keeps its logger in a global without a lock.
//
// Levels: klog's warnings arrive as info, and V(n) as zap's level -n: V(1) is zap's debug level, and what lies below needs an
// encoder that knows names for levels below debug. A logger that samples would drop the very repetitions that tell of trouble.
func RedirectKlog(z *zap.Logger) {
	klog.SetLoggerWithOptions(zapr.NewLoggerWithOptions(z.Named("client-go"), zapr.LogInfoLevel("v")), klog.ContextualLogger(true))
}
