// Serves Google's own in-memory Pub/Sub (pstest) on a loopback port until it is told to stop, and beside it, over
// HTTP, what it knows of a message: how often it was delivered and acknowledged.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"time"

	"cloud.google.com/go/pubsub/pstest"
)

func main() {
	port := flag.Int("port", 0, "where to listen, on localhost")
	inspect := flag.Int("inspect", 0, "where to answer GET /messages?id=, on localhost")
	lifetime := flag.Duration("stream-lifetime", 0, "how long a stream is served; 0: without an end")
	flooding := flag.Int("flood", 0, "serve messages of so many bytes without an end, instead of pstest")
	flag.Parse()
	if *flooding > 0 {
		serveFlood(*port, *flooding)
	}
	// The service takes nothing below ten seconds. Tests do not want to wait that long.
	pstest.SetMinAckDeadline(2 * time.Second)
	server := pstest.NewServerWithPort(*port)
	server.SetStreamTimeout(*lifetime)
	http.HandleFunc("/messages", func(answer http.ResponseWriter, request *http.Request) {
		found := []*pstest.Message{}
		for _, id := range request.URL.Query()["id"] {
			if message := server.Message(id); message != nil {
				found = append(found, message)
			}
		}
		json.NewEncoder(answer).Encode(found)
	})
	fmt.Println("listening on", server.Addr)
	panic(http.ListenAndServe(fmt.Sprintf("127.0.0.1:%d", *inspect), nil))
}
