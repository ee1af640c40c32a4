// Command talosprobe looks at strata's side of Talos with the vendor's own library: it validates machine
// configurations and asks nodes through the vendor's client. Its output is one JSON document.
package main

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"google.golang.org/grpc/status"

	"github.com/siderolabs/talos/pkg/machinery/client"
	"github.com/siderolabs/talos/pkg/machinery/config/configloader"
	"github.com/siderolabs/talos/pkg/machinery/config/validation"
)

const usage = `usage:
  talosprobe validate CONFIGURATION
  talosprobe maintenance ADDRESS
  talosprobe node TALOSCONFIG ENDPOINT NODE
  talosprobe snapshot TALOSCONFIG ENDPOINT FILE`

// A node on loopback answers at once; a longer silence is a fault of the test.
const limit = 30 * time.Second

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	report, err := run(ctx, os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if err := json.NewEncoder(os.Stdout).Encode(report); err != nil {
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) (any, error) {
	switch {
	case len(args) == 2 && args[0] == "validate":
		return validate(args[1])
	case len(args) == 2 && args[0] == "maintenance":
		return maintenance(ctx, args[1])
	case len(args) == 4 && args[0] == "node":
		return node(ctx, args[1], args[2], args[3])
	case len(args) == 4 && args[0] == "snapshot":
		return snapshot(ctx, args[1], args[2], args[3])
	default:
		return nil, errors.New(usage)
	}
}

// cloud is the mode of a server at a cloud provider.
type cloud struct{}

func (cloud) String() string        { return "cloud" }
func (cloud) RequiresInstall() bool { return false }
func (cloud) InContainer() bool     { return false }

func validate(file string) (any, error) {
	provider, err := configloader.NewFromFile(file)
	if err != nil {
		return nil, fmt.Errorf("the configuration cannot be read: %w", err)
	}
	warnings, err := provider.Validate(cloud{}, validation.WithStrict())
	if err != nil {
		return nil, fmt.Errorf("the configuration is not valid: %w", err)
	}
	kinds := []string{}
	for _, document := range provider.Documents() {
		kinds = append(kinds, document.Kind())
	}
	return map[string]any{"warnings": warnings, "documents": kinds}, nil
}

func maintenance(ctx context.Context, address string) (any, error) {
	c, err := client.New(ctx,
		client.WithTLSConfig(&tls.Config{InsecureSkipVerify: true}), //nolint:gosec // such a node has no other
		client.WithEndpoints(address))
	if err != nil {
		return nil, err
	}
	defer c.Close() //nolint:errcheck
	_, err = c.Version(ctx)
	return map[string]any{"code": status.Code(err).String(), "message": status.Convert(err).Message()}, nil
}

func connect(ctx context.Context, talosconfig, endpoint string) (*client.Client, error) {
	return client.New(ctx, client.WithConfigFromFile(talosconfig), client.WithEndpoints(endpoint))
}

func node(ctx context.Context, talosconfig, endpoint, name string) (any, error) {
	c, err := connect(ctx, talosconfig, endpoint)
	if err != nil {
		return nil, err
	}
	defer c.Close() //nolint:errcheck
	ctx = client.WithNodes(ctx, name)
	version, err := c.Version(ctx)
	if err != nil {
		return nil, fmt.Errorf("Version: %w", err)
	}
	services, err := c.ServiceList(ctx)
	if err != nil {
		return nil, fmt.Errorf("ServiceList: %w", err)
	}
	states := map[string]string{}
	for _, message := range services.Messages {
		for _, service := range message.Services {
			states[service.Id] = service.State
		}
	}
	return map[string]any{
		"hostname": version.Messages[0].GetMetadata().GetHostname(),
		"version":  version.Messages[0].GetVersion().GetTag(),
		"services": states,
	}, nil
}

func snapshot(ctx context.Context, talosconfig, endpoint, file string) (any, error) {
	c, err := connect(ctx, talosconfig, endpoint)
	if err != nil {
		return nil, err
	}
	defer c.Close() //nolint:errcheck
	reader, err := c.EtcdSnapshot(ctx, nil)
	if err != nil {
		return nil, fmt.Errorf("EtcdSnapshot: %w", err)
	}
	defer reader.Close() //nolint:errcheck
	out, err := os.Create(file)
	if err != nil {
		return nil, err
	}
	size, err := io.Copy(out, reader)
	if err = errors.Join(err, out.Close()); err != nil {
		return nil, fmt.Errorf("EtcdSnapshot: %w", err)
	}
	return map[string]any{"size": size}, nil
}
