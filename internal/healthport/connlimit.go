package healthport

import (
	"container/list"
	"net"
	"net/http"
	"sync"
)

// MaxConnections is the total number of connections to all ports of a node. It limits the use of memory and file
// descriptors.
const MaxConnections = 512

// ConnLimit limits the number of open connections. If a new connection exceeds the limit, the oldest one is closed: its
// client is slow or idle, because responses are fast. If the limit rejected new connections instead, a client could
// hold connections open and lock out load balancers, which would then consider the node down.
type ConnLimit struct {
	max int

	mu    sync.Mutex
	order *list.List // of net.Conn, oldest first
	open  map[net.Conn]*list.Element
}

// NewConnLimit returns a ConnLimit without connections.
func NewConnLimit(limit int) *ConnLimit {
	return &ConnLimit{max: limit, order: list.New(), open: map[net.Conn]*list.Element{}}
}

// Track is the ConnState hook of HTTP servers.
func (c *ConnLimit) Track(conn net.Conn, state http.ConnState) {
	switch state {
	case http.StateNew:
		if oldest := c.add(conn); oldest != nil {
			_ = oldest.Close() // the server's next read fails
		}
	case http.StateClosed, http.StateHijacked:
		c.remove(conn)
	}
}

// add returns the connection to close; nil if there is room.
func (c *ConnLimit) add(conn net.Conn) net.Conn {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open[conn] = c.order.PushBack(conn)
	if c.order.Len() <= c.max {
		return nil
	}
	oldest := c.order.Remove(c.order.Front()).(net.Conn)
	delete(c.open, oldest)
	return oldest
}

func (c *ConnLimit) remove(conn net.Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e, ok := c.open[conn]; ok {
		c.order.Remove(e)
		delete(c.open, conn)
	}
}
