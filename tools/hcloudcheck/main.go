// Checks the simulated Hetzner API with Hetzner's own library: what this program accepts, the vendor's programs accept.
//
// HCLOUD_ENDPOINT and HCLOUD_TOKEN name an empty project, OTHER_TOKEN another one, READER_TOKEN may only read the first.
// `hcloudcheck try NAME` creates a server, without trying again, and prints what became of it: how a fault looks.
// `hcloudcheck status NAME` prints the status of a server, or that it is absent.
package main

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"runtime"
	"time"

	"github.com/hetznercloud/hcloud-go/v2/hcloud"
)

// Nothing here takes more than seconds; a simulator that hangs is to be seen.
const limit = 2 * time.Minute

type part struct {
	name  string
	check func(context.Context, *hcloud.Client)
}

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	if len(os.Args) == 3 && os.Args[1] == "try" {
		fmt.Println(try(ctx, os.Args[2]))
		return
	}
	if len(os.Args) == 3 && os.Args[1] == "status" {
		fmt.Println(status(ctx, os.Args[2]))
		return
	}
	client := clientWith(os.Getenv("HCLOUD_TOKEN"))
	parts := []part{
		{"catalogue", catalogue},
		{"ssh keys", sshKeys},
		{"placement groups", placementGroups},
		{"servers", servers},
		{"images", images},
		{"networks", networks},
		{"load balancers", loadBalancers},
		{"firewalls", firewalls},
		{"volumes", volumes},
		{"certificates", certificates},
		{"lists", lists},
		{"actions", actions},
		{"bad input", badInput},
		{"tokens", tokens},
	}
	allFine := true
	for _, part := range parts {
		allFine = run(ctx, client, part) && allFine
	}
	if !allFine {
		os.Exit(1)
	}
}

// A part that fails does not keep the others from being checked.
func run(ctx context.Context, client *hcloud.Client, part part) (isFine bool) {
	defer func() {
		if failure := recover(); failure != nil {
			fmt.Fprintf(os.Stderr, "failed %s: %v\n", part.name, failure)
		}
	}()
	part.check(ctx, client)
	fmt.Println("ok", part.name)
	return true
}

func clientWith(token string) *hcloud.Client {
	return hcloud.NewClient(
		hcloud.WithEndpoint(os.Getenv("HCLOUD_ENDPOINT")),
		hcloud.WithToken(token),
		// The simulator's actions take milliseconds.
		hcloud.WithPollOpts(hcloud.PollOpts{BackoffFunc: hcloud.ConstantBackoff(10 * time.Millisecond)}),
		hcloud.WithRetryOpts(hcloud.RetryOpts{BackoffFunc: hcloud.ConstantBackoff(10 * time.Millisecond), MaxRetries: 5}),
	)
}

// How long an action may run before `try` says so; the simulator's take milliseconds.
const actionLimit = time.Second

func try(ctx context.Context, name string) string {
	client := hcloud.NewClient(
		hcloud.WithEndpoint(os.Getenv("HCLOUD_ENDPOINT")), hcloud.WithToken(os.Getenv("HCLOUD_TOKEN")),
		hcloud.WithRetryOpts(hcloud.RetryOpts{MaxRetries: 0}),
		hcloud.WithPollOpts(hcloud.PollOpts{BackoffFunc: hcloud.ConstantBackoff(10 * time.Millisecond)}),
	)
	made, _, err := client.Server.Create(ctx, hcloud.ServerCreateOpts{
		Name: name, ServerType: &hcloud.ServerType{Name: "cx23"}, Image: &hcloud.Image{Name: "debian-13"},
	})
	var refused hcloud.Error
	if errors.As(err, &refused) {
		return "refused " + string(refused.Code)
	}
	if err != nil {
		return "no answer"
	}
	waiting, cancel := context.WithTimeout(ctx, actionLimit)
	defer cancel()
	err = client.Action.WaitFor(waiting, append(made.NextActions, made.Action)...)
	var failed hcloud.ActionError
	switch {
	case err == nil:
		return "created"
	case errors.As(err, &failed):
		return "action failed " + failed.Code
	case errors.Is(err, context.DeadlineExceeded):
		return "action still running"
	default:
		return "action not found"
	}
}

func status(ctx context.Context, name string) string {
	server := must(clientWith(os.Getenv("HCLOUD_TOKEN")).Server.GetByName(ctx, name))
	if server == nil {
		return "absent"
	}
	return string(server.Status)
}

func fail(format string, arguments ...any) {
	_, _, line, _ := runtime.Caller(2)
	panic(fmt.Sprintf("line %d: %s", line, fmt.Sprintf(format, arguments...)))
}

func must[T any](value T, _ *hcloud.Response, err error) T {
	if err != nil {
		fail("%v", err)
	}
	return value
}

func noError(err error) {
	if err != nil {
		fail("%v", err)
	}
}

func expect(is bool, format string, arguments ...any) {
	if !is {
		fail(format, arguments...)
	}
}

func refused(err error, code hcloud.ErrorCode) {
	expect(hcloud.IsError(err, code), "expected %s, got %v", code, err)
}

func await(ctx context.Context, client *hcloud.Client, actions ...*hcloud.Action) {
	noError(client.Action.WaitFor(ctx, actions...))
}

func create(ctx context.Context, client *hcloud.Client, opts hcloud.ServerCreateOpts) *hcloud.Server {
	if opts.ServerType == nil {
		opts.ServerType = &hcloud.ServerType{Name: "cx23"}
	}
	if opts.Image == nil {
		opts.Image = &hcloud.Image{Name: "debian-13"}
	}
	made := must(client.Server.Create(ctx, opts))
	await(ctx, client, append(made.NextActions, made.Action)...)
	return must(client.Server.GetByID(ctx, made.Server.ID))
}

func remove(ctx context.Context, client *hcloud.Client, server *hcloud.Server) {
	gone := must(client.Server.DeleteWithResult(ctx, server))
	await(ctx, client, gone.Action)
	expect(must(client.Server.GetByID(ctx, server.ID)) == nil, "server %s is still there", server.Name)
}

func catalogue(ctx context.Context, client *hcloud.Client) {
	kind := must(client.ServerType.GetByName(ctx, "cx23"))
	expect(kind != nil && kind.Architecture == hcloud.ArchitectureX86 && kind.Cores == 2, "cx23: %+v", kind)
	expect(len(kind.Locations) > 0 && len(kind.Pricings) > 0, "cx23: %+v", kind)
	location := must(client.Location.GetByName(ctx, "nbg1"))
	expect(location != nil && location.NetworkZone == hcloud.NetworkZoneEUCentral, "nbg1: %+v", location)
	balancer := must(client.LoadBalancerType.GetByName(ctx, "lb11"))
	expect(balancer != nil && balancer.MaxServices == 5, "lb11: %+v", balancer)
	for _, name := range []string{"debian-12", "debian-13"} {
		for _, architecture := range []hcloud.Architecture{hcloud.ArchitectureX86, hcloud.ArchitectureARM} {
			image := must(client.Image.GetByNameAndArchitecture(ctx, name, architecture))
			expect(image != nil && image.Architecture == architecture, "%s: %+v", name, image)
		}
	}
	pricing := must(client.Pricing.Get(ctx))
	expect(pricing.Currency == "EUR" && len(pricing.ServerTypes) > 5, "%+v", pricing)
	centers, err := client.Datacenter.All(ctx) //nolint:staticcheck // served until Hetzner removes it
	noError(err)
	expect(len(centers) > 2 && centers[0].Location.Name != "", "%+v", centers)
	for _, list := range []func() (int, error){
		func() (int, error) { all, err := client.ISO.All(ctx); return len(all), err },
		func() (int, error) { all, err := client.FloatingIP.All(ctx); return len(all), err },
		func() (int, error) { all, err := client.PrimaryIP.All(ctx); return len(all), err },
	} {
		count, err := list()
		noError(err)
		expect(count == 0, "an empty project has %d", count)
	}
}

// A key as OpenSSH writes it; each number has its own.
func publicKey(number byte) string {
	blob := append([]byte("\x00\x00\x00\x0bssh-ed25519\x00\x00\x00\x20"), bytes.Repeat([]byte{number}, 32)...)
	return "ssh-ed25519 " + base64.StdEncoding.EncodeToString(blob)
}

func sshKeys(ctx context.Context, client *hcloud.Client) {
	opts := hcloud.SSHKeyCreateOpts{Name: "key", PublicKey: publicKey(255) + " key@host", Labels: map[string]string{"a": "b"}}
	key := must(client.SSHKey.Create(ctx, opts))
	expect(key.Fingerprint != "" && key.Labels["a"] == "b", "%+v", key)
	found := must(client.SSHKey.GetByFingerprint(ctx, key.Fingerprint))
	expect(found != nil && found.ID == key.ID, "by fingerprint: %+v", found)
	renamed := must(client.SSHKey.Update(ctx, key, hcloud.SSHKeyUpdateOpts{Name: "other"}))
	expect(renamed.Name == "other" && renamed.Labels["a"] == "b", "%+v", renamed)
	_, _, err := client.SSHKey.Create(ctx, opts)
	refused(err, hcloud.ErrorCodeUniquenessError)
	server := create(ctx, client, hcloud.ServerCreateOpts{Name: "with-key", SSHKeys: []*hcloud.SSHKey{key}})
	remove(ctx, client, server)
	_, err = client.SSHKey.Delete(ctx, key)
	noError(err)
	expect(must(client.SSHKey.GetByID(ctx, key.ID)) == nil, "the key is still there")
}

func placementGroups(ctx context.Context, client *hcloud.Client) {
	opts := hcloud.PlacementGroupCreateOpts{Name: "group", Type: hcloud.PlacementGroupTypeSpread}
	group := must(client.PlacementGroup.Create(ctx, opts)).PlacementGroup
	server := create(ctx, client, hcloud.ServerCreateOpts{Name: "member", PlacementGroup: group})
	expect(server.PlacementGroup != nil && server.PlacementGroup.ID == group.ID, "%+v", server.PlacementGroup)
	group = must(client.PlacementGroup.GetByName(ctx, "group"))
	expect(len(group.Servers) == 1 && group.Servers[0] == server.ID, "%+v", group)
	remove(ctx, client, server)
	_, err := client.PlacementGroup.Delete(ctx, group)
	noError(err)
}

func servers(ctx context.Context, client *hcloud.Client) {
	off := false
	server := create(ctx, client, hcloud.ServerCreateOpts{
		Name: "server", Location: &hcloud.Location{Name: "nbg1"}, StartAfterCreate: &off,
		Labels: map[string]string{"role": "cp"}, UserData: "#cloud-config",
	})
	expect(server.Status == hcloud.ServerStatusOff && !server.Locked, "%+v", server)
	expect(server.Location.Name == "nbg1" && server.Image.Name == "debian-13", "%+v", server)
	expect(server.PublicNet.IPv4.IP != nil && server.PublicNet.IPv6.IP != nil, "%+v", server.PublicNet)
	steps := []struct {
		do     func(context.Context, *hcloud.Server) (*hcloud.Action, *hcloud.Response, error)
		status hcloud.ServerStatus
	}{
		{client.Server.Poweron, hcloud.ServerStatusRunning},
		{client.Server.Reboot, hcloud.ServerStatusRunning},
		{client.Server.Reset, hcloud.ServerStatusRunning},
		{client.Server.Shutdown, hcloud.ServerStatusOff},
		{client.Server.Poweron, hcloud.ServerStatusRunning},
		{client.Server.Poweroff, hcloud.ServerStatusOff},
	}
	for _, step := range steps {
		await(ctx, client, must(step.do(ctx, server)))
		server = must(client.Server.GetByName(ctx, "server"))
		expect(server.Status == step.status, "is %s, not %s", server.Status, step.status)
	}
	changed := must(client.Server.ChangeType(ctx, server, hcloud.ServerChangeTypeOpts{ServerType: &hcloud.ServerType{Name: "cx33"}}))
	await(ctx, client, changed)
	rescue := must(client.Server.EnableRescue(ctx, server, hcloud.ServerEnableRescueOpts{Type: hcloud.ServerRescueTypeLinux64}))
	await(ctx, client, rescue.Action)
	expect(rescue.RootPassword != "", "no password of the rescue system")
	rebuilt := must(client.Server.RebuildWithResult(ctx, server, hcloud.ServerRebuildOpts{Image: &hcloud.Image{Name: "debian-12"}}))
	await(ctx, client, rebuilt.Action)
	updated := must(client.Server.Update(ctx, server, hcloud.ServerUpdateOpts{Labels: map[string]string{"role": "w"}}))
	expect(updated.Labels["role"] == "w" && updated.ServerType.Name == "cx33" && updated.RescueEnabled, "%+v", updated)
	expect(updated.Image.Name == "debian-12" && updated.Status == hcloud.ServerStatusRunning, "%+v", updated)
	yes, no := true, false
	protect := func(is *bool) {
		opts := hcloud.ServerChangeProtectionOpts{Delete: is, Rebuild: is}
		await(ctx, client, must(client.Server.ChangeProtection(ctx, server, opts)))
	}
	protect(&yes)
	_, _, err := client.Server.DeleteWithResult(ctx, server)
	refused(err, hcloud.ErrorCodeProtected)
	protect(&no)
	remove(ctx, client, server)
}

func images(ctx context.Context, client *hcloud.Client) {
	server := create(ctx, client, hcloud.ServerCreateOpts{Name: "build"})
	description := "talos"
	opts := &hcloud.ServerCreateImageOpts{Type: hcloud.ImageTypeSnapshot, Description: &description, Labels: map[string]string{"os": "talos"}}
	made := must(client.Server.CreateImage(ctx, server, opts))
	await(ctx, client, made.Action)
	list := hcloud.ImageListOpts{Type: []hcloud.ImageType{hcloud.ImageTypeSnapshot}, ListOpts: hcloud.ListOpts{LabelSelector: "os=talos"}}
	found, err := client.Image.AllWithOpts(ctx, list)
	noError(err)
	expect(len(found) == 1 && found[0].Status == hcloud.ImageStatusAvailable, "%+v", found)
	expect(found[0].CreatedFrom.ID == server.ID && found[0].Description == "talos", "%+v", found[0])
	from := create(ctx, client, hcloud.ServerCreateOpts{Name: "from-snapshot", Image: found[0]})
	remove(ctx, client, from)
	remove(ctx, client, server)
	_, err = client.Image.Delete(ctx, found[0])
	noError(err)
}

func cidr(text string) *net.IPNet {
	_, network, err := net.ParseCIDR(text)
	noError(err)
	return network
}

func subnet(text string) hcloud.NetworkSubnet {
	return hcloud.NetworkSubnet{Type: hcloud.NetworkSubnetTypeCloud, IPRange: cidr(text), NetworkZone: hcloud.NetworkZoneEUCentral}
}

func networks(ctx context.Context, client *hcloud.Client) {
	opts := hcloud.NetworkCreateOpts{Name: "net", IPRange: cidr("10.0.0.0/16"), Subnets: []hcloud.NetworkSubnet{subnet("10.0.0.0/25")}}
	network := must(client.Network.Create(ctx, opts))
	await(ctx, client, must(client.Network.AddSubnet(ctx, network, hcloud.NetworkAddSubnetOpts{Subnet: subnet("10.0.1.0/25")})))
	network = must(client.Network.GetByName(ctx, "net"))
	expect(len(network.Subnets) == 2 && network.Subnets[0].Gateway.String() == "10.0.0.1", "%+v", network.Subnets)
	server := create(ctx, client, hcloud.ServerCreateOpts{Name: "in-net"})
	attach := hcloud.ServerAttachToNetworkOpts{Network: network, IP: net.ParseIP("10.0.1.7")}
	await(ctx, client, must(client.Server.AttachToNetwork(ctx, server, attach)))
	server = must(client.Server.GetByID(ctx, server.ID))
	expect(len(server.PrivateNet) == 1 && server.PrivateNet[0].IP.String() == "10.0.1.7", "%+v", server.PrivateNet)
	members, err := client.Network.AllMembers(ctx, network)
	noError(err)
	expect(len(members) == 1 && members[0].IP.String() == "10.0.1.7", "%+v", members)
	_, _, err = client.Server.AttachToNetwork(ctx, server, attach)
	refused(err, hcloud.ErrorCodeServerAlreadyAttached)
	other := create(ctx, client, hcloud.ServerCreateOpts{Name: "also-in-net", Networks: []*hcloud.Network{network}})
	_, _, err = client.Server.AttachToNetwork(ctx, other, attach)
	refused(err, hcloud.ErrorCodeServerAlreadyAttached)
	await(ctx, client, must(client.Server.DetachFromNetwork(ctx, other, hcloud.ServerDetachFromNetworkOpts{Network: network})))
	_, _, err = client.Server.AttachToNetwork(ctx, other, attach)
	refused(err, hcloud.ErrorCodeIPNotAvailable)
	remove(ctx, client, other)
	// What is attached does not keep a network.
	_, err = client.Network.Delete(ctx, network)
	noError(err)
	for len(must(client.Server.GetByID(ctx, server.ID)).PrivateNet) > 0 {
		time.Sleep(10 * time.Millisecond)
	}
	remove(ctx, client, server)
}

func loadBalancers(ctx context.Context, client *hcloud.Client) {
	network := must(client.Network.Create(ctx, hcloud.NetworkCreateOpts{
		Name: "lb-net", IPRange: cidr("10.1.0.0/16"), Subnets: []hcloud.NetworkSubnet{subnet("10.1.0.0/24")},
	}))
	server := create(ctx, client, hcloud.ServerCreateOpts{
		Name: "target", Networks: []*hcloud.Network{network}, Labels: map[string]string{"role": "cp"},
	})
	made := must(client.LoadBalancer.Create(ctx, hcloud.LoadBalancerCreateOpts{
		Name: "lb", LoadBalancerType: &hcloud.LoadBalancerType{Name: "lb11"}, Location: &hcloud.Location{Name: "fsn1"},
		Algorithm: &hcloud.LoadBalancerAlgorithm{Type: hcloud.LoadBalancerAlgorithmTypeRoundRobin},
	}))
	await(ctx, client, made.Action)
	balancer := made.LoadBalancer
	usePrivate := true
	target := hcloud.LoadBalancerAddLabelSelectorTargetOpts{Selector: "role=cp", UsePrivateIP: &usePrivate}
	_, _, err := client.LoadBalancer.AddLabelSelectorTarget(ctx, balancer, target)
	refused(err, hcloud.ErrorCodeLoadBalancerNotAttachedToNetwork)
	attach := hcloud.LoadBalancerAttachToNetworkOpts{Network: network, IP: net.ParseIP("10.1.0.254")}
	await(ctx, client, must(client.LoadBalancer.AttachToNetwork(ctx, balancer, attach)))
	port, interval, timeout, retries, tls, path := 6443, 3*time.Second, 2*time.Second, 2, true, "/version"
	service := hcloud.LoadBalancerAddServiceOpts{
		Protocol: hcloud.LoadBalancerServiceProtocolTCP, ListenPort: &port, DestinationPort: &port,
		HealthCheck: &hcloud.LoadBalancerAddServiceOptsHealthCheck{
			Protocol: hcloud.LoadBalancerServiceProtocolHTTP, Port: &port, Interval: &interval, Timeout: &timeout, Retries: &retries,
			HTTP: &hcloud.LoadBalancerAddServiceOptsHealthCheckHTTP{Path: &path, StatusCodes: []string{"401"}, TLS: &tls},
		},
	}
	await(ctx, client, must(client.LoadBalancer.AddService(ctx, balancer, service)))
	_, _, err = client.LoadBalancer.AddService(ctx, balancer, service)
	refused(err, hcloud.ErrorCodeSourcePortAlreadyUsed)
	await(ctx, client, must(client.LoadBalancer.AddLabelSelectorTarget(ctx, balancer, target)))
	_, _, err = client.LoadBalancer.AddLabelSelectorTarget(ctx, balancer, target)
	refused(err, hcloud.ErrorCodeTargetAlreadyDefined)
	balancer = must(client.LoadBalancer.GetByName(ctx, "lb"))
	expect(balancer.PublicNet.Enabled && balancer.PublicNet.IPv4.IP != nil, "%+v", balancer.PublicNet)
	expect(len(balancer.PrivateNet) == 1 && balancer.PrivateNet[0].IP.String() == "10.1.0.254", "%+v", balancer.PrivateNet)
	check := balancer.Services[0].HealthCheck
	expect(check.Interval == interval && check.HTTP != nil && check.HTTP.TLS && check.HTTP.Path == path, "%+v", check)
	expect(len(balancer.Targets) == 1 && len(balancer.Targets[0].Targets) == 1, "%+v", balancer.Targets)
	chosen := balancer.Targets[0].Targets[0]
	expect(chosen.Server.Server.ID == server.ID && chosen.HealthStatus[0].ListenPort == port, "%+v", chosen)
	await(ctx, client, must(client.LoadBalancer.RemoveLabelSelectorTarget(ctx, balancer, "role=cp")))
	await(ctx, client, must(client.LoadBalancer.DeleteService(ctx, balancer, port)))
	larger := hcloud.LoadBalancerChangeTypeOpts{LoadBalancerType: &hcloud.LoadBalancerType{Name: "lb21"}}
	await(ctx, client, must(client.LoadBalancer.ChangeType(ctx, balancer, larger)))
	await(ctx, client, must(client.LoadBalancer.DeleteWithResult(ctx, balancer)).Action)
	expect(must(client.LoadBalancer.GetByID(ctx, balancer.ID)) == nil, "the load balancer is still there")
	remove(ctx, client, server)
	_, err = client.Network.Delete(ctx, network)
	noError(err)
}

func firewalls(ctx context.Context, client *hcloud.Client) {
	port := "6443"
	rule := hcloud.FirewallRule{
		Direction: hcloud.FirewallRuleDirectionIn, Protocol: hcloud.FirewallRuleProtocolTCP, Port: &port,
		SourceIPs: []net.IPNet{*cidr("192.0.2.1/32")},
	}
	selector := hcloud.FirewallResource{
		Type: hcloud.FirewallResourceTypeLabelSelector, LabelSelector: &hcloud.FirewallResourceLabelSelector{Selector: "cluster=c"},
	}
	made := must(client.Firewall.Create(ctx, hcloud.FirewallCreateOpts{Name: "wall", Rules: []hcloud.FirewallRule{rule}}))
	await(ctx, client, made.Actions...)
	await(ctx, client, must(client.Firewall.ApplyResources(ctx, made.Firewall, []hcloud.FirewallResource{selector}))...)
	server := create(ctx, client, hcloud.ServerCreateOpts{Name: "covered", Labels: map[string]string{"cluster": "c"}})
	expect(len(server.PublicNet.Firewalls) == 1, "the firewall does not apply: %+v", server.PublicNet)
	wall := must(client.Firewall.GetByName(ctx, "wall"))
	expect(len(wall.Rules) == 1 && wall.Rules[0].SourceIPs[0].String() == "192.0.2.1/32", "%+v", wall.Rules)
	expect(len(wall.AppliedTo) == 1 && len(wall.AppliedTo[0].AppliedToResources) == 1, "%+v", wall.AppliedTo)
	_, err := client.Firewall.Delete(ctx, wall)
	refused(err, hcloud.ErrorCodeResourceInUse)
	await(ctx, client, must(client.Firewall.SetRules(ctx, wall, hcloud.FirewallSetRulesOpts{Rules: []hcloud.FirewallRule{}}))...)
	await(ctx, client, must(client.Firewall.RemoveResources(ctx, wall, []hcloud.FirewallResource{selector}))...)
	_, err = client.Firewall.Delete(ctx, wall)
	noError(err)
	remove(ctx, client, server)
}

func volumes(ctx context.Context, client *hcloud.Client) {
	made := must(client.Volume.Create(ctx, hcloud.VolumeCreateOpts{Name: "disk", Size: 10, Location: &hcloud.Location{Name: "fsn1"}}))
	await(ctx, client, made.Action)
	server := create(ctx, client, hcloud.ServerCreateOpts{Name: "with-disk", Location: &hcloud.Location{Name: "fsn1"}})
	await(ctx, client, must(client.Volume.Attach(ctx, made.Volume, server)))
	volume := must(client.Volume.GetByName(ctx, "disk"))
	expect(volume.Server != nil && volume.Server.ID == server.ID, "%+v", volume)
	await(ctx, client, must(client.Volume.Detach(ctx, volume)))
	await(ctx, client, must(client.Volume.Resize(ctx, volume, 20)))
	expect(must(client.Volume.GetByID(ctx, volume.ID)).Size == 20, "the volume did not grow")
	_, err := client.Volume.Delete(ctx, volume)
	noError(err)
	remove(ctx, client, server)
}

// Certificate and key, in PEM.
func selfSigned() (string, string) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	noError(err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "marker"}, NotAfter: time.Now().Add(time.Hour),
	}
	certificate, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	noError(err)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	noError(err)
	encode := func(kind string, content []byte) string {
		return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: content}))
	}
	return encode("CERTIFICATE", certificate), encode("PRIVATE KEY", private)
}

func certificates(ctx context.Context, client *hcloud.Client) {
	certificate, key := selfSigned()
	opts := hcloud.CertificateCreateOpts{Name: "c-state", Certificate: certificate, PrivateKey: key, Labels: map[string]string{"state": "initialized"}}
	made := must(client.Certificate.Create(ctx, opts))
	found := must(client.Certificate.GetByName(ctx, "c-state"))
	expect(found != nil && found.ID == made.ID && found.Type == hcloud.CertificateTypeUploaded, "%+v", found)
	opts.Name, opts.Certificate = "bad", "no certificate"
	_, _, err := client.Certificate.Create(ctx, opts)
	refused(err, hcloud.ErrorCodeInvalidInput)
	_, err = client.Certificate.Delete(ctx, made)
	noError(err)
}

func lists(ctx context.Context, client *hcloud.Client) {
	for number := range 60 {
		opts := hcloud.SSHKeyCreateOpts{
			Name: fmt.Sprintf("key-%02d", number), PublicKey: publicKey(byte(number)),
			Labels: map[string]string{"even": fmt.Sprint(number%2 == 0), "number": fmt.Sprint(number)},
		}
		must(client.SSHKey.Create(ctx, opts))
	}
	all, err := client.SSHKey.All(ctx)
	noError(err)
	expect(len(all) == 60, "%d keys on all pages", len(all))
	_, response, err := client.SSHKey.List(ctx, hcloud.SSHKeyListOpts{ListOpts: hcloud.ListOpts{Page: 2, PerPage: 25}})
	noError(err)
	pagination := response.Meta.Pagination
	expect(pagination.PreviousPage == 1 && pagination.NextPage == 3 && pagination.LastPage == 3, "%+v", pagination)
	expect(pagination.TotalEntries == 60, "%+v", pagination)
	limits := response.Meta.Ratelimit
	expect(limits.Limit == 3600 && limits.Remaining < 3600 && limits.Reset.After(time.Now()), "%+v", limits)
	selectors := map[string]int{
		"even=true": 30, "even==true": 30, "even!=true": 30, "number in (1,2,3)": 3, "number notin (1,2,3)": 57,
		"!even": 0, "even,number=7": 1, "even": 60,
	}
	for selector, count := range selectors {
		opts := hcloud.SSHKeyListOpts{ListOpts: hcloud.ListOpts{LabelSelector: selector}}
		found, err := client.SSHKey.AllWithOpts(ctx, opts)
		noError(err)
		expect(len(found) == count, "%s selects %d, not %d", selector, len(found), count)
	}
	sorted, err := client.SSHKey.AllWithOpts(ctx, hcloud.SSHKeyListOpts{Sort: []string{"name:desc"}})
	noError(err)
	expect(sorted[0].Name == "key-59" && sorted[59].Name == "key-00", "%s first", sorted[0].Name)
	for _, key := range all {
		_, err := client.SSHKey.Delete(ctx, key)
		noError(err)
	}
}

func actions(ctx context.Context, client *hcloud.Client) {
	made := must(client.Server.Create(ctx, hcloud.ServerCreateOpts{
		Name: "acted", ServerType: &hcloud.ServerType{Name: "cx23"}, Image: &hcloud.Image{Name: "debian-12"},
	}))
	expect(made.Action.Command == "create_server" && made.Action.Resources[0].ID == made.Server.ID, "%+v", made.Action)
	_, _, err := client.Server.DeleteWithResult(ctx, made.Server)
	refused(err, hcloud.ErrorCodeLocked)
	await(ctx, client, append(made.NextActions, made.Action)...)
	one := must(client.Action.GetByID(ctx, made.Action.ID))
	expect(one.Status == hcloud.ActionStatusSuccess && one.Progress == 100 && !one.Finished.IsZero(), "%+v", one)
	of, err := client.Server.Action.AllFor(ctx, made.Server, hcloud.ActionListOpts{})
	noError(err)
	expect(len(of) == 2, "%d actions of the server", len(of))
	err = client.Action.WaitFor(ctx, &hcloud.Action{ID: 1 << 40, Status: hcloud.ActionStatusRunning})
	expect(err != nil, "an action that does not exist was awaited")
	remove(ctx, client, made.Server)
}

func badInput(ctx context.Context, client *hcloud.Client) {
	create := func(opts hcloud.ServerCreateOpts) error {
		_, _, err := client.Server.Create(ctx, opts)
		return err
	}
	kind, image := &hcloud.ServerType{Name: "cx23"}, &hcloud.Image{Name: "debian-13"}
	err := create(hcloud.ServerCreateOpts{Name: "bad_name", ServerType: kind, Image: image})
	refused(err, hcloud.ErrorCodeInvalidInput)
	var apiError hcloud.Error
	errors.As(err, &apiError)
	details, is := apiError.Details.(hcloud.ErrorDetailsInvalidInput)
	expect(is && len(details.Fields) == 1 && details.Fields[0].Name == "name", "%+v", apiError.Details)
	arm := must(client.Image.GetByNameAndArchitecture(ctx, "debian-13", hcloud.ArchitectureARM))
	refused(create(hcloud.ServerCreateOpts{Name: "bad", ServerType: kind, Image: arm}), hcloud.ErrorCodeInvalidInput)
	_, err = client.SSHKey.AllWithOpts(ctx, hcloud.SSHKeyListOpts{ListOpts: hcloud.ListOpts{LabelSelector: "a=("}})
	refused(err, hcloud.ErrorCodeInvalidInput)
	_, err = client.Server.Delete(ctx, &hcloud.Server{ID: 4711}) //nolint:staticcheck // its error is what counts
	refused(err, hcloud.ErrorCodeNotFound)
	expect(must(client.Server.GetByName(ctx, "nothing")) == nil, "a server that was never created")
}

func tokens(ctx context.Context, client *hcloud.Client) {
	server := create(ctx, client, hcloud.ServerCreateOpts{Name: "own"})
	_, err := clientWith("wrong").Server.All(ctx)
	refused(err, hcloud.ErrorCodeUnauthorized)
	reader := clientWith(os.Getenv("READER_TOKEN"))
	found, err := reader.Server.All(ctx)
	noError(err)
	expect(len(found) == 1, "the reader sees %d servers", len(found))
	_, _, err = reader.Server.Poweroff(ctx, server)
	// The library has no name for it; the documentation of the API has.
	refused(err, "token_readonly")
	others, err := clientWith(os.Getenv("OTHER_TOKEN")).Server.All(ctx)
	noError(err)
	expect(len(others) == 0, "another project sees %d servers", len(others))
	remove(ctx, client, server)
}
