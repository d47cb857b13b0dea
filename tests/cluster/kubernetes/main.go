// Command kube is a whole Kubernetes in one executable. Its first argument names
// the component to run, and what follows goes to that component unchanged:
//
//	kube kube-apiserver --etcd-servers=...
//
// is the upstream kube-apiserver with its own flags. The components have nearly
// all their dependencies in common, so one executable is one build and a sixth of
// the size.
package main

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	_ "time/tzdata" // CronJob time zones on a machine that has no zoneinfo files

	"github.com/coredns/coredns/coremain"
	_ "github.com/coredns/coredns/plugin/bind" // the CoreDNS plugins that a cluster needs, and no more
	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

// command adapts a component made of a cobra command. The command is constructed
// only when it is to run: several constructors change process-wide feature gates.
func command(construct func() *cobra.Command) func() {
	return func() { os.Exit(cli.Run(construct())) }
}

var components = map[string]func(){
	"coredns":                 coremain.Run,
	"etcd":                    func() { etcdmain.Main(os.Args) },
	"kube-apiserver":          command(apiserver.NewAPIServerCommand),
	"kube-controller-manager": command(controllermanager.NewControllerManagerCommand),
	"kube-proxy":              command(proxy.NewProxyCommand),
	"kube-scheduler":          command(func() *cobra.Command { return scheduler.NewSchedulerCommand() }),
	"kubectl":                 command(kubectl.NewDefaultKubectlCommand),
	"kubelet":                 command(func() *cobra.Command { return kubelet.NewKubeletCommand() }),
}

func main() {
	if len(os.Args) > 1 {
		if run, found := components[os.Args[1]]; found {
			os.Args = os.Args[1:]
			run()
			return
		}
	}
	names := slices.Sorted(maps.Keys(components))
	fmt.Fprintln(os.Stderr, "usage: kube COMPONENT [ARGUMENT...]\ncomponents:", strings.Join(names, " "))
	os.Exit(2)
}
