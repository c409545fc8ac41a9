package httpapi

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"unicode/utf8"

	"github.com/labstack/echo/v4"

	"github.com/queenmq/queen/pkg/wire"
	"github.com/queenmq/queen/services/broker/internal/admission"
	"github.com/queenmq/queen/services/broker/internal/kv"
)

// Reasons of requests on keys that are not understood.
const (
	reasonQueryString = "kv_no_query_string"
	reasonFieldInPath = "kv_field_in_path"
	reasonNamespace   = "kv_bad_namespace"
	reasonKey         = "kv_bad_key"
	reasonBodySize    = "kv_body_too_large"
	reasonBodiesBusy  = "kv_bodies_in_flight"
)

// kvBatch handles POST /api/v1/kv.
func (a *API) kvBatch(c echo.Context) error {
	return a.withKVBody(c, func(body []byte) error {
		ops, err := wire.ParseOperations(body)
		if err != nil {
			return badKVBody(err)
		}
		answer, err := a.deps.Keys.Apply(c.Request().Context(), a.tenant(c), ops)
		if err != nil {
			return err
		}
		if answer.Lost != nil {
			return respond(c, http.StatusOK, wire.AppendKVLost(nil, *answer.Lost))
		}
		return a.respondIn(c, http.StatusOK, len(answer.Results)+len(`{"results":}`), func(dst []byte) []byte {
			return wire.AppendResults(dst, answer.Results)
		})
	})
}

// kvGet handles GET /api/v1/kv/:ns/*key.
func (a *API) kvGet(c echo.Context) error { return a.kvOne(c, "get", nil) }

// kvPut handles PUT /api/v1/kv/:ns/*key.
func (a *API) kvPut(c echo.Context) error {
	return a.withKVBody(c, func(body []byte) error {
		members, err := wire.ParseKVPut(body)
		if err != nil {
			return badKVBody(err)
		}
		return a.kvOne(c, "put", members)
	})
}

// kvDelete handles DELETE /api/v1/kv/:ns/*key.
func (a *API) kvDelete(c echo.Context) error {
	return a.withKVBody(c, func(body []byte) error {
		members, err := wire.ParseKVDelete(body)
		if err != nil {
			return badKVBody(err)
		}
		return a.kvOne(c, "delete", members)
	})
}

// kvOne carries out one operation on the key of the path, and answers the element
// of its result.
func (a *API) kvOne(c echo.Context, op string, members []byte) error {
	namespace, key, err := kvNames(c)
	if err != nil {
		return err
	}
	ops := wire.AppendKVOperation(nil, op, namespace, key, members)
	answer, err := a.deps.Keys.Apply(c.Request().Context(), a.tenant(c), ops)
	switch {
	case err != nil:
		return err
	case answer.Lost != nil:
		return respond(c, http.StatusOK, wire.AppendKVLost(nil, *answer.Lost))
	}
	element := only(answer.Results)
	if op == "get" {
		setETag(c, element)
	}
	return respond(c, http.StatusOK, element)
}

// kvNames are the names of the path, each decoded once: a key may hold a slash, as
// it is or escaped.
func kvNames(c echo.Context) (namespace, key string, err error) {
	if err := noQuery(c); err != nil {
		return "", "", err
	}
	if namespace, err = kvName(c.Param("ns"), reasonNamespace); err != nil {
		return "", "", err
	}
	key, err = kvName(c.Param("*"), reasonKey)
	return namespace, key, err
}

func kvName(raw, reason string) (string, error) {
	name, err := url.PathUnescape(raw)
	switch {
	case err != nil:
		return "", badKV(reason, "bad escape in the path: "+err.Error())
	case !utf8.ValidString(name):
		return "", badKV(reason, "a name in the path is not valid UTF-8")
	}
	return name, nil
}

// noQuery refuses parameters: a client that sends some believes that they matter.
func noQuery(c echo.Context) error {
	if c.Request().URL.RawQuery != "" {
		return badKV(reasonQueryString, "this route takes no parameters")
	}
	return nil
}

// only is the one element of an array.
func only(array []byte) []byte { return array[1 : len(array)-1] }

// setETag shows the version of a row that was found.
func setETag(c echo.Context, element []byte) {
	var row struct {
		Found   bool  `json:"found"`
		Version int64 `json:"version"`
	}
	if err := json.Unmarshal(element, &row); err == nil && row.Found {
		c.Response().Header().Set("ETag", strconv.Quote(strconv.FormatInt(row.Version, 10)))
	}
}

// withKVBody is withBody with refusals in the words of the family.
func (a *API) withKVBody(c echo.Context, use func(body []byte) error) error {
	err := a.withBody(c, use)
	switch {
	case errors.Is(err, errTooLarge):
		return &wire.Refusal{
			Status: http.StatusRequestEntityTooLarge, Code: wire.CodePayloadTooLarge, Reason: reasonBodySize, Detail: err.Error(),
		}
	case errors.Is(err, errBusy):
		return &wire.Refusal{
			Status: http.StatusTooManyRequests, Code: wire.CodeRateLimited, Reason: reasonBodiesBusy, Detail: err.Error(), RetryAfter: admission.RetryAfter,
		}
	case errors.Is(err, errCutOff), errors.Is(err, errFraming):
		return badKV(kv.ReasonBadBody, err.Error())
	}
	return err
}

// badKVBody refuses a body that cannot be understood.
func badKVBody(err error) error {
	var inPath *wire.FieldInPathError
	if errors.As(err, &inPath) {
		return badKV(reasonFieldInPath, err.Error())
	}
	return badKV(kv.ReasonBadBody, err.Error())
}

func badKV(reason, detail string) error {
	return &wire.Refusal{Status: http.StatusBadRequest, Code: kv.CodeBadRequest, Reason: reason, Detail: detail}
}
