package cluster

import (
	"context"
	"io"
	"net"
	"net/http"
	"time"
)

// Page is an HTTP response.
type Page struct {
	Status int
	Header http.Header
	Body   string
	URL    string // the page's URL, after redirects
}

// HTTPGet fetches a URL from this host. The URL's host must be an address.
func (h *Host) HTTPGet(url string, options ...DialOption) (Page, error) {
	o := optionsOf(options, DefaultWithin)
	ctx, cancel := context.WithTimeout(context.Background(), o.within)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return Page{}, err
	}
	transport := &http.Transport{DisableKeepAlives: true, DialContext: h.dialContext}
	defer transport.CloseIdleConnections()
	response, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		return Page{}, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return Page{Status: response.StatusCode, Header: response.Header, Body: string(body), URL: response.Request.URL.String()}, err
}

// With an address instead of a name, package net dials on the calling thread.
func (h *Host) dialContext(ctx context.Context, network, address string) (conn net.Conn, err error) {
	failed := h.Do(func() error {
		conn, err = (&net.Dialer{KeepAlive: -time.Second}).DialContext(ctx, network, address)
		return nil
	})
	if failed != nil {
		return nil, failed
	}
	return conn, err
}
