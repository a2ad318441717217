// Enqueues and runs no-ops with asynq. `python -m benchmarks.foreign` builds and runs this program.
//
//	asynq one N                 enqueue N no-ops one after the other; print the rate
//	asynq concurrent N CALLERS  enqueue N no-ops from CALLERS goroutines; print the rate
//	asynq stamps N              enqueue N jobs that record their latency, one every 20 to 60 ms
//	asynq worker                run jobs until SIGTERM
//	asynq version
package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"log"
	"math/rand"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hibiken/asynq"
)

// A worker writes its count this often, and at each execution after the last expected one.
const every = 100

func main() {
	switch os.Args[1] {
	case "one":
		fmt.Printf("%.1f\n", enqueue(number(2), 1))
	case "concurrent":
		fmt.Printf("%.1f\n", enqueue(number(2), number(3)))
	case "stamps":
		stamps(number(2))
	case "worker":
		work()
	case "version":
		fmt.Println(version())
	default:
		log.Fatalf("unknown command %q", os.Args[1])
	}
}

func redis(connections int) asynq.RedisClientOpt {
	return asynq.RedisClientOpt{Addr: "127.0.0.1:" + os.Getenv("BENCH_PORT"), PoolSize: connections}
}

// enqueue returns jobs per second; the first job, which connects, is not timed.
func enqueue(jobs, callers int) float64 {
	client := asynq.NewClient(redis(callers))
	defer client.Close()
	send := func() {
		if _, err := client.Enqueue(asynq.NewTask("noop", nil)); err != nil {
			log.Fatal(err)
		}
	}
	send()
	var sent atomic.Int64
	var running sync.WaitGroup
	started := time.Now()
	for range callers {
		running.Add(1)
		go func() {
			defer running.Done()
			for sent.Add(1) < int64(jobs) {
				send()
			}
		}()
	}
	running.Wait()
	return float64(jobs-1) / time.Since(started).Seconds()
}

func stamps(jobs int) {
	client := asynq.NewClient(redis(1))
	defer client.Close()
	for range jobs {
		time.Sleep(20*time.Millisecond + time.Duration(rand.Int63n(int64(40*time.Millisecond))))
		now := binary.LittleEndian.AppendUint64(nil, uint64(time.Now().UnixNano()))
		if _, err := client.Enqueue(asynq.NewTask("stamp", now)); err != nil {
			log.Fatal(err)
		}
	}
}

func work() {
	slots, err := strconv.Atoi(os.Getenv("BENCH_SLOTS"))
	if err != nil {
		log.Fatal(err)
	}
	counts := &counter{file: opened("count"), jobs: environment("BENCH_JOBS")}
	instants := opened("instants")
	routes := asynq.NewServeMux()
	routes.HandleFunc("noop", func(context.Context, *asynq.Task) error {
		return counts.add(time.Now().UnixNano())
	})
	routes.HandleFunc("stamp", func(_ context.Context, task *asynq.Task) error {
		now := uint64(time.Now().UnixNano())
		_, err := instants.Write(binary.LittleEndian.AppendUint64(task.Payload(), now))
		return err
	})
	server := asynq.NewServer(redis(0), asynq.Config{Concurrency: slots, LogLevel: asynq.FatalLevel})
	if err := server.Run(routes); err != nil {
		log.Fatal(err)
	}
}

// counter counts executions in memory and writes (count, first, last) to a file.
type counter struct {
	lock     sync.Mutex
	file     *os.File
	jobs     int64
	n, first int64
}

func (c *counter) add(now int64) error {
	c.lock.Lock()
	defer c.lock.Unlock()
	c.n++
	if c.n == 1 {
		c.first = now
	}
	if c.n != 1 && c.n%every != 0 && c.n < c.jobs {
		return nil
	}
	var record []byte
	for _, value := range []int64{c.n, c.first, now} {
		record = binary.LittleEndian.AppendUint64(record, uint64(value))
	}
	_, err := c.file.WriteAt(record, 0)
	return err
}

func opened(kind string) *os.File {
	name := filepath.Join(os.Getenv("BENCH_DIR"), fmt.Sprintf("%s.%d", kind, os.Getpid()))
	file, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		log.Fatal(err)
	}
	return file
}

func environment(name string) int64 {
	value, err := strconv.ParseInt(os.Getenv(name), 10, 64)
	if err != nil {
		log.Fatal(err)
	}
	return value
}

func number(place int) int {
	value, err := strconv.Atoi(os.Args[place])
	if err != nil {
		log.Fatal(err)
	}
	return value
}

func version() string {
	built, _ := debug.ReadBuildInfo()
	for _, module := range built.Deps {
		if module.Path == "github.com/hibiken/asynq" {
			return fmt.Sprintf("%s, Go %s", strings.TrimPrefix(module.Version, "v"), strings.TrimPrefix(runtime.Version(), "go"))
		}
	}
	return "?"
}
