package daemon

import (
	"fmt"
	"io"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/kube-ipvs/kube-ipvs/internal/finding"
)

// NewLogger returns a logger that does not sample, so the log contains every change.
func NewLogger(w io.Writer, level, format string) (*zap.Logger, zap.AtomicLevel, error) {
	l := zap.NewAtomicLevel()
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return nil, l, fmt.Errorf("--log-level %q: use debug, info, warn or error", level)
	}
	cfg := zap.NewProductionEncoderConfig()
	cfg.EncodeTime = zapcore.ISO8601TimeEncoder
	cfg.EncodeDuration = zapcore.StringDurationEncoder
	var encoder zapcore.Encoder
	switch format {
	case "json":
		encoder = zapcore.NewJSONEncoder(cfg)
	case "text":
		cfg.EncodeLevel = zapcore.CapitalLevelEncoder
		cfg.ConsoleSeparator = " "
		encoder = zapcore.NewConsoleEncoder(cfg)
	default:
		return nil, l, fmt.Errorf("--log-format %q: use text or json", format)
	}
	return zap.New(zapcore.NewCore(encoder, zapcore.Lock(zapcore.AddSync(w)), l)), l, nil
}

// ErrorLog returns a logger that logs only errors, for commands that print their results.
func ErrorLog(w io.Writer) *zap.Logger {
	log, _, _ := NewLogger(w, "error", "text")
	return log
}

// logFindings logs what the machine lacks.
func logFindings(found []finding.Finding, log *zap.Logger) {
	for _, f := range found {
		switch f.Severity {
		case finding.Broken:
			log.Error(f.String())
		case finding.Warning:
			log.Warn(f.String())
		default:
			log.Info(f.String())
		}
	}
}
