package healthport

import (
	"container/list"
	"net"
	"net/http"
	"sync"
)

// maxConnections bounds the connections to all ports together, and with them memory and file descriptors.
const maxConnections = 512

// crowd bounds how many clients are connected. One more than may be cuts off the one that has been there longest: an answer
// takes no time, so that is a slow client, or one that keeps a connection for later. Refusing the newest instead would let
// whoever holds connections open speak for the node: load balancers would find it dead.
type crowd struct {
	most int

	mu      sync.Mutex
	order   *list.List // of net.Conn, the oldest first
	present map[net.Conn]*list.Element
}

func newCrowd(most int) *crowd {
	return &crowd{most: most, order: list.New(), present: map[net.Conn]*list.Element{}}
}

// follow is told by HTTP servers what becomes of connections.
func (c *crowd) follow(conn net.Conn, state http.ConnState) {
	switch state {
	case http.StateNew:
		if oldest := c.enter(conn); oldest != nil {
			_ = oldest.Close() // its server notices
		}
	case http.StateClosed, http.StateHijacked:
		c.leave(conn)
	}
}

// enter returns the connection that has to go, or nil.
func (c *crowd) enter(conn net.Conn) net.Conn {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.present[conn] = c.order.PushBack(conn)
	if c.order.Len() <= c.most {
		return nil
	}
	oldest := c.order.Remove(c.order.Front()).(net.Conn)
	delete(c.present, oldest)
	return oldest
}

func (c *crowd) leave(conn net.Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e, ok := c.present[conn]; ok {
		c.order.Remove(e)
		delete(c.present, conn)
	}
}
