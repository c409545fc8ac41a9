package telemetry

import (
	"bytes"
	"log/slog"
	"net/http"
	"strconv"

	"github.com/prometheus/common/expfmt"

	"github.com/queenmq/queen/pkg/logging"
)

// contentType is exactly what scrapers of the original system were given; the
// stock handler would add parameters to it.
const contentType = "text/plain; version=0.0.4; charset=utf-8"

// Handler serves the metrics as text. A collector that fails costs its own
// families and nothing else.
func (t *Telemetry) Handler(log *slog.Logger) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		families, err := t.Registry.Gather()
		if err != nil {
			log.WarnContext(r.Context(), "metrics are incomplete", logging.Err(err))
		}
		var body bytes.Buffer
		enc := expfmt.NewEncoder(&body, expfmt.NewFormat(expfmt.TypeTextPlain))
		for _, family := range t.idle.complete(families) {
			if err := enc.Encode(family); err != nil {
				log.WarnContext(r.Context(), "metrics are incomplete", logging.Err(err))
			}
		}
		header := w.Header()
		header.Set("Content-Type", contentType)
		header.Set("Cache-Control", "no-cache")
		header.Set("Content-Length", strconv.Itoa(body.Len()))
		_, _ = w.Write(body.Bytes())
	})
}
