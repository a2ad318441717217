// Load on a server with lmstfy's interface, for benchmarks/http.py. Prints one JSON object.
//
//	http_load -port 7777 -mode publish|consume|ack|bulk|batch|polls|due -connections 64 -requests 20000
//
// Requests are bytes made beforehand, and answers are read only as far as needed, so that the load takes
// less CPU than a server.
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"sort"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

var (
	port        = flag.Int("port", 7777, "")
	mode        = flag.String("mode", "publish", "")
	connections = flag.Int("connections", 1, "")
	requests    = flag.Int("requests", 1000, "of all connections together; of polls: wake-ups")
	queue       = flag.String("queue", "load", "")
	token       = flag.String("token", "", "")
	size        = flag.Int("size", 100, "bytes of a job")
	delay       = flag.Int("delay", 3, "seconds, for due")
	hold        = flag.Duration("hold", 0, "for polls: time that they wait before the first wake-up")
)

func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

type client struct {
	conn   net.Conn
	reader *bufio.Reader
}

func dial() *client {
	conn, err := net.Dial("tcp", "127.0.0.1:"+strconv.Itoa(*port))
	fail(err)
	return &client{conn, bufio.NewReaderSize(conn, 4096)}
}

func request(method, path string, body []byte) []byte {
	head := method + " " + path + " HTTP/1.1\r\nHost: localhost\r\nX-Token: " + *token + "\r\n"
	if body != nil {
		head += "Content-Length: " + strconv.Itoa(len(body)) + "\r\n"
	}
	return append([]byte(head+"\r\n"), body...)
}

// The status and the body of the next answer.
func (c *client) answer() (int, []byte) {
	line, err := c.reader.ReadSlice('\n')
	fail(err)
	status, err := strconv.Atoi(string(line[9:12]))
	fail(err)
	length, chunked := 0, false
	for {
		line, err = c.reader.ReadSlice('\n')
		fail(err)
		if len(line) <= 2 {
			break
		}
		if len(line) > 15 && strings.EqualFold(string(line[:15]), "content-length:") {
			length, err = strconv.Atoi(strings.TrimSpace(string(line[15:])))
			fail(err)
		}
		chunked = chunked || len(line) > 18 && strings.EqualFold(string(line[:18]), "transfer-encoding:")
	}
	if chunked {
		return status, c.chunks()
	}
	body := make([]byte, length)
	_, err = io.ReadFull(c.reader, body)
	fail(err)
	return status, body
}

func (c *client) chunks() []byte {
	var body []byte
	for {
		line, err := c.reader.ReadSlice('\n')
		fail(err)
		length, err := strconv.ParseInt(strings.TrimSpace(string(line)), 16, 32)
		fail(err)
		chunk := make([]byte, length+2)
		_, err = io.ReadFull(c.reader, chunk)
		fail(err)
		if length == 0 {
			return body
		}
		body = append(body, chunk[:length]...)
	}
}

func (c *client) ask(sent []byte) (int, []byte) {
	_, err := c.conn.Write(sent)
	fail(err)
	return c.answer()
}

func jobID(body []byte) string {
	at := bytes.Index(body, []byte(`"job_id":"`)) + 10
	return string(body[at : at+bytes.IndexByte(body[at:], '"')])
}

// Latencies of requests that all connections make, each its share.
func spread(act func(c *client, nth int) int) ([]time.Duration, time.Duration, int) {
	each := *requests / *connections
	clients := make([]*client, *connections)
	for n := range clients {
		clients[n] = dial()
	}
	took := make([][]time.Duration, *connections)
	var failed int64
	var group sync.WaitGroup
	began := time.Now()
	for n := range clients {
		group.Add(1)
		go func(n int) {
			defer group.Done()
			for i := 0; i < each; i++ {
				start := time.Now()
				status := act(clients[n], n*each+i)
				took[n] = append(took[n], time.Since(start))
				if status < 200 || status > 299 {
					atomic.AddInt64(&failed, 1)
				}
			}
		}(n)
	}
	group.Wait()
	passed := time.Since(began)
	var all []time.Duration
	for _, some := range took {
		all = append(all, some...)
	}
	return all, passed, int(failed)
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

func report(took []time.Duration, passed time.Duration, failed int, more map[string]float64) {
	sort.Slice(took, func(a, b int) bool { return took[a] < took[b] })
	found := map[string]float64{"per_second": float64(len(took)) / passed.Seconds(), "failed": float64(failed)}
	if len(took) > 0 {
		found["p50_ms"] = ms(took[len(took)/2])
		found["p99_ms"] = ms(took[len(took)*99/100])
		found["max_ms"] = ms(took[len(took)-1])
	}
	for name, value := range more {
		found[name] = value
	}
	fail(json.NewEncoder(os.Stdout).Encode(found))
}

func bulkBody(jobs int) []byte {
	one := `"` + strings.Repeat("x", *size-2) + `"`
	return []byte("[" + strings.Repeat(one+",", jobs-1) + one + "]")
}

func main() {
	flag.Parse()
	path := "/api/ns/" + *queue
	body := bytes.Repeat([]byte("x"), *size)
	switch *mode {
	case "publish":
		sent := request("PUT", path+"?ttl=3600&tries=5", body)
		took, passed, failed := spread(func(c *client, _ int) int { s, _ := c.ask(sent); return s })
		report(took, passed, failed, nil)
	case "consume":
		sent := request("GET", path+"?ttr=600", nil)
		took, passed, failed := spread(func(c *client, _ int) int { s, _ := c.ask(sent); return s })
		report(took, passed, failed, nil)
	case "ack":
		ids := drain(path)
		if len(ids) < *requests {
			*requests = len(ids)
		}
		took, passed, failed := spread(func(c *client, nth int) int {
			s, _ := c.ask(request("DELETE", path+"/job/"+ids[nth], nil))
			return s
		})
		report(took, passed, failed, nil)
	case "bulk":
		sent := request("PUT", path+"/bulk?ttl=3600&tries=5", bulkBody(64))
		took, passed, failed := spread(func(c *client, _ int) int { s, _ := c.ask(sent); return s })
		report(took, passed, failed, nil)
	case "batch":
		sent := request("GET", path+"?ttr=600&count=100", nil)
		took, passed, failed := spread(func(c *client, _ int) int { s, _ := c.ask(sent); return s })
		report(took, passed, failed, nil)
	case "polls":
		polls(path, body)
	case "due":
		due(path)
	}
}

// The ids of all jobs of the queue, which are reserved then.
func drain(path string) []string {
	c := dial()
	sent := request("GET", path+"?ttr=600&count=100", nil)
	var ids []string
	for {
		status, answer := c.ask(sent)
		if status != 200 {
			return ids
		}
		for _, part := range bytes.SplitAfter(answer, []byte("}")) {
			if bytes.Contains(part, []byte(`"job_id"`)) {
				ids = append(ids, jobID(part))
			}
		}
	}
}

// Idle long polls, one on each connection; then jobs one at a time: from the begin of a publish to the answer
// of the poll that gets the job.
// Wake-ups that are not counted: at its first request a server compiles its scripts.
const warmUp = 20

func polls(path string, body []byte) {
	wait := request("GET", path+"?ttr=600&timeout=600", nil)
	got := make(chan time.Time, *connections)
	for n := 0; n < *connections; n++ {
		c := dial()
		_, err := c.conn.Write(wait)
		fail(err)
		go func() {
			for {
				if _, err := c.reader.Peek(1); err != nil {
					return
				}
				at := time.Now()
				c.answer()
				got <- at
				c.conn.Write(wait)
			}
		}()
	}
	time.Sleep(*hold)
	fmt.Fprintln(os.Stderr, "waiting")
	bufio.NewReader(os.Stdin).ReadString('\n') // the caller has read the server's memory
	publisher := dial()
	sent := request("PUT", path+"?ttl=3600&tries=5", body)
	var took []time.Duration
	began := time.Now()
	for n := -warmUp; n < *requests; n++ {
		start := time.Now()
		publisher.ask(sent)
		if late := (<-got).Sub(start); n >= 0 {
			took = append(took, late)
		}
		time.Sleep(2 * time.Millisecond)
	}
	report(took, time.Since(began), 0, nil)
}

// Jobs with a delay, published in bulk by one connection, and consumed 100 at a time by waiting requests: how
// late each is, from its delay to its delivery.
func due(path string) {
	publisher := dial()
	sent := request("PUT", fmt.Sprintf("%s/bulk?ttl=3600&tries=5&delay=%d", path, *delay), bulkBody(50))
	began := time.Now()
	for n := 0; n < *requests/50; n++ {
		if status, answer := publisher.ask(sent); status != 201 {
			fail(fmt.Errorf("bulk: %d %s", status, answer))
		}
	}
	published := time.Since(began)
	last := time.Now().Add(time.Duration(*delay) * time.Second)
	wait := request("GET", path+"?ttr=600&count=100&timeout=30", nil)
	var late []time.Duration
	var lock sync.Mutex
	done := make(chan time.Time)
	for n := 0; n < *connections; n++ {
		c := dial()
		go func() {
			for {
				status, answer := c.ask(wait)
				if status != 200 {
					return
				}
				at := time.Now()
				var jobs []struct {
					Elapsed int64 `json:"elapsed_ms"`
				}
				fail(json.Unmarshal(answer, &jobs))
				lock.Lock()
				for _, job := range jobs {
					late = append(late, time.Duration(job.Elapsed-int64(*delay)*1000)*time.Millisecond)
				}
				all := len(late) >= *requests/50*50
				lock.Unlock()
				if all {
					done <- at
				}
			}
		}()
	}
	end := <-done
	lock.Lock()
	defer lock.Unlock()
	report(late, end.Sub(began), 0, map[string]float64{
		"published_in_ms": ms(published), "last_after_due_ms": ms(end.Sub(last)),
	})
}
