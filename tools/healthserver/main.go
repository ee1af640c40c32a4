// The program of the images that tests run on a real node: a gRPC health server whose answer a test can
// turn, and the process that holds a pod's sandbox.
package main

import (
	"flag"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"syscall"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == "pause" {
		waitForEnd()
		return
	}
	port := flag.Int("port", 9090, "port of the gRPC health service")
	controlPort := flag.Int("control-port", 8080, "port that takes POST /serving, /not-serving and /exit/CODE, GET /environment/NAME; 0 for none")
	starts := flag.String("start", "serving", "state at start: serving or not-serving")
	flag.Parse()

	status := health.NewServer()
	turn(status, *starts)
	if *controlPort != 0 {
		go func() { log.Fatal(http.ListenAndServe(fmt.Sprintf(":%d", *controlPort), control(status))) }()
	}
	listener, err := net.Listen("tcp", fmt.Sprintf(":%d", *port))
	if err != nil {
		log.Fatal(err)
	}
	log.Printf("health service on port %d", *port)
	server := grpc.NewServer()
	grpc_health_v1.RegisterHealthServer(server, status)
	go func() {
		waitForEnd()
		server.Stop()
	}()
	if err := server.Serve(listener); err != nil {
		log.Fatal(err)
	}
}

func waitForEnd() {
	ends := make(chan os.Signal, 1)
	signal.Notify(ends, syscall.SIGINT, syscall.SIGTERM)
	<-ends
}

func control(status *health.Server) http.Handler {
	mux := http.NewServeMux()
	for _, state := range []string{"serving", "not-serving"} {
		mux.HandleFunc("POST /"+state, func(http.ResponseWriter, *http.Request) { turn(status, state) })
	}
	mux.HandleFunc("GET /environment/{name}", func(answer http.ResponseWriter, request *http.Request) {
		fmt.Fprint(answer, os.Getenv(request.PathValue("name")))
	})
	mux.HandleFunc("POST /exit/{code}", func(answer http.ResponseWriter, request *http.Request) {
		code, err := strconv.Atoi(request.PathValue("code"))
		if err != nil {
			http.Error(answer, err.Error(), http.StatusBadRequest)
			return
		}
		os.Exit(code)
	})
	return mux
}

// The empty service is the whole server; Kubernetes probes it unless a probe names another.
func turn(status *health.Server, state string) {
	serving := grpc_health_v1.HealthCheckResponse_NOT_SERVING
	if state == "serving" {
		serving = grpc_health_v1.HealthCheckResponse_SERVING
	}
	status.SetServingStatus("", serving)
}
