// A config server for tests, built with the library that Envoy Gateway uses.
//
// It reads one JSON object per line: {"version": "1", "resources": [...]} with RateLimitConfig messages, and serves it
// as the snapshot of the node. It prints one JSON object per line: its address, then each request that it receives.
package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"net"
	"os"
	"sync"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"github.com/envoyproxy/go-control-plane/pkg/server/v3"
	config "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/protobuf/encoding/protojson"
)

type update struct {
	Version   string            `json:"version"`
	Resources []json.RawMessage `json:"resources"`
}

type event struct {
	Listening string `json:"listening,omitempty"`
	Node      string `json:"node,omitempty"`
	Version   string `json:"version"`
	Nonce     string `json:"nonce"`
	Error     string `json:"error,omitempty"`
}

var output sync.Mutex

func print(event event) {
	output.Lock()
	defer output.Unlock()
	line, _ := json.Marshal(event)
	fmt.Println(string(line))
}

func main() {
	listen := flag.String("listen", "127.0.0.1:0", "address")
	node := flag.String("node", "default", "node id")
	cert := flag.String("cert", "", "certificate; none means no TLS")
	key := flag.String("key", "", "key")
	ca := flag.String("ca", "", "authority of the clients")
	flag.Parse()

	var options []grpc.ServerOption
	if *cert != "" {
		options = append(options, grpc.Creds(transport(*cert, *key, *ca)))
	}
	snapshots := cache.NewSnapshotCache(false, cache.IDHash{}, nil)
	callbacks := server.CallbackFuncs{
		StreamRequestFunc: func(_ int64, request *discovery.DiscoveryRequest) error {
			print(event{
				Node:    request.GetNode().GetId(),
				Version: request.GetVersionInfo(),
				Nonce:   request.GetResponseNonce(),
				Error:   request.GetErrorDetail().GetMessage(),
			})
			return nil
		},
	}
	grpcServer := grpc.NewServer(options...)
	ads := server.NewServer(context.Background(), snapshots, callbacks)
	discovery.RegisterAggregatedDiscoveryServiceServer(grpcServer, ads)
	listener, err := net.Listen("tcp", *listen)
	if err != nil {
		log.Fatal(err)
	}
	go func() { log.Fatal(grpcServer.Serve(listener)) }()
	print(event{Listening: listener.Addr().String()})

	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 64<<20)
	for lines.Scan() {
		if err := publish(snapshots, *node, lines.Bytes()); err != nil {
			log.Fatal(err)
		}
	}
}

func publish(snapshots cache.SnapshotCache, node string, line []byte) error {
	var update update
	if err := json.Unmarshal(line, &update); err != nil {
		return err
	}
	var resources []types.Resource
	for _, text := range update.Resources {
		message := &config.RateLimitConfig{}
		if err := protojson.Unmarshal(text, message); err != nil {
			return err
		}
		resources = append(resources, message)
	}
	byType := map[resource.Type][]types.Resource{resource.RateLimitConfigType: resources}
	snapshot, err := cache.NewSnapshot(update.Version, byType)
	if err != nil {
		return err
	}
	return snapshots.SetSnapshot(context.Background(), node, snapshot)
}

func transport(cert, key, ca string) credentials.TransportCredentials {
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		log.Fatal(err)
	}
	settings := &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS13}
	if ca != "" {
		text, err := os.ReadFile(ca)
		if err != nil {
			log.Fatal(err)
		}
		settings.ClientCAs = x509.NewCertPool()
		settings.ClientCAs.AppendCertsFromPEM(text)
		settings.ClientAuth = tls.RequireAndVerifyClientCert
	}
	return credentials.NewTLS(settings)
}
