package ui

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
)

// question and answer are the lines of a stream. An answer has the ID of its question.
type question struct {
	ID int `json:"id"`
	Question
}

type answer struct {
	ID       int             `json:"id"`
	Document json.RawMessage `json:"document,omitempty"`
	Error    string          `json:"error,omitempty"`
}

// maxAtOnce limits the number of questions that Serve answers at the same time.
const maxAtOnce = 4

// Serve answers the questions of a Client until the input or ctx ends.
func Serve(ctx context.Context, in io.Reader, out io.Writer, node Node) error {
	ctx, stop := context.WithCancel(ctx)
	var answering sync.WaitGroup
	defer answering.Wait()
	defer stop()
	var writing sync.Mutex
	questions, ended := make(chan question), make(chan error, 1)
	go func() { ended <- readQuestions(ctx, in, questions) }() // ends when its input ends, possibly after Serve has returned
	slots := make(chan struct{}, maxAtOnce)
	for {
		var q question
		select {
		case q = <-questions:
		case err := <-ended:
			return err
		case <-ctx.Done():
			return nil
		}
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			return nil
		}
		answering.Go(func() {
			defer func() { <-slots }()
			a := answer{ID: q.ID}
			document, err := node.Answer(ctx, q.Question)
			if a.Document = document; err != nil {
				a.Error = err.Error()
			}
			writing.Lock()
			defer writing.Unlock()
			_ = json.NewEncoder(out).Encode(a) // if the client has disconnected, the input ends
		})
	}
}

func readQuestions(ctx context.Context, in io.Reader, questions chan<- question) error {
	lines := json.NewDecoder(in)
	for {
		var q question
		switch err := lines.Decode(&q); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("read a question: %w", err)
		}
		select {
		case questions <- q:
		case <-ctx.Done():
			return nil
		}
	}
}

// Client is a Node at the other end of a stream.
type Client struct {
	writing sync.Mutex // held while a question is written; answers can arrive meanwhile
	out     io.Writer
	limit   int    // of an answer, in bytes
	end     func() // called when the stream has ended

	mu      sync.Mutex
	last    int
	waiting map[int]chan answer
	closed  error // the reason why the stream has ended
}

// NewClient returns a Client that writes its questions to out and reads the answers from in. An answer of more than limit bytes ends the
// stream. When the stream has ended, the Client calls end.
func NewClient(in io.Reader, out io.Writer, limit int, end func()) *Client {
	c := &Client{out: out, limit: limit, end: end, waiting: map[int]chan answer{}}
	go c.read(in)
	return c
}

// Answer implements Node.
func (c *Client) Answer(ctx context.Context, q Question) (json.RawMessage, error) {
	id, answered, err := c.send(q)
	if err != nil {
		return nil, err
	}
	select {
	case a, open := <-answered:
		switch {
		case !open:
			return nil, c.Err()
		case a.Error != "":
			return nil, errors.New(a.Error)
		}
		return a.Document, nil
	case <-ctx.Done():
		c.forget(id)
		return nil, ctx.Err()
	}
}

// Err returns the reason why the stream has ended, or nil.
func (c *Client) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.closed
}

// send writes a question.
func (c *Client) send(q Question) (id int, answered chan answer, err error) {
	c.mu.Lock()
	c.last++
	id, answered, err = c.last, make(chan answer, 1), c.closed
	if err == nil {
		c.waiting[id] = answered
	}
	c.mu.Unlock()
	if err != nil {
		return 0, nil, err
	}
	c.writing.Lock()
	defer c.writing.Unlock()
	if err := json.NewEncoder(c.out).Encode(question{id, q}); err != nil {
		c.forget(id)
		return 0, nil, fmt.Errorf("the connection to the node has ended: %w", err)
	}
	return id, answered, nil
}

func (c *Client) forget(id int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.waiting, id)
}

// bounded reads at most left bytes.
type bounded struct {
	in   io.Reader
	left int
	full error
}

func (b *bounded) Read(p []byte) (int, error) {
	if b.left == 0 {
		return 0, b.full
	}
	n, err := b.in.Read(p[:min(len(p), b.left)])
	b.left -= n
	return n, err
}

func (c *Client) read(in io.Reader) {
	defer c.end()
	source := &bounded{in: bufio.NewReader(in), full: fmt.Errorf("its answer is larger than %d MiB", c.limit>>20)}
	answers := json.NewDecoder(source)
	for {
		var a answer
		source.left = c.limit
		err := answers.Decode(&a)
		c.mu.Lock()
		if err != nil {
			c.closed = fmt.Errorf("the connection to the node has ended: %w", err)
			for _, waiting := range c.waiting {
				close(waiting)
			}
			c.waiting = nil
			c.mu.Unlock()
			return
		}
		if waiting, exists := c.waiting[a.ID]; exists {
			delete(c.waiting, a.ID)
			waiting <- a
		}
		c.mu.Unlock()
	}
}
