# shellcheck shell=sh disable=SC2034
# Settings and functions that the programs of this directory share: each of them
# sets "here" to this directory and reads this file first.

MAX_NODES=9             # nodes are node1 .. node9
BRIDGE=kaa0             # joins the machine and the nodes
HOST_IP=10.88.0.1       # the machine's address on it: API server and cluster DNS
NODE_NET=10.88.0        # node N is $NODE_NET.(10+N)
POD_NET=10.244          # the pods of node N are in $POD_NET.N.0/24
SERVICE_NET=10.96.0.0/16
EMBEDDED_NET=10.90.0      # pods of an embedded Kubernetes on this machine, which nodes and pods reach
API_SERVICE_IP=10.96.0.1
VOLUMES=/tmp/hostpath_pv # a fixed path of the controller manager

: "${here:?}"
program=${0##*/}
cache=${KAA_CLUSTER_CACHE:-${XDG_CACHE_HOME:-${HOME:?is not set}/.cache}/kaa-cluster}

say() { printf '%s %s\n' "$(date +%T)" "$*"; }
warn() { printf '%s: %s\n' "$program" "$*" >&2; }
die() { warn "$@"; exit 1; }
misused() { warn "$*; see $0 --help"; exit 2; }

# answer_help ARGUMENT...: prints the calling program's first comment if an argument asks for help.
answer_help() {
	for argument in "$@"; do
		case $argument in
		-h | --help) sed -n '2,/^$/s/^# \{0,1\}//p' "$0"; exit 0 ;;
		esac
	done
}

# use DIR: selects the cluster. Sets the paths, and creates nothing.
use() {
	case $1 in -* | "") misused "DIR comes first, not '$1'" ;; esac
	dir=$(realpath -m -- "$1")
	case $dir in
	*[!A-Za-z0-9/._+-]*) die "DIR can have only letters, digits and . _ + - in its path: $dir" ;;
	/ | /run/* | /var/lib/* | /var/log/*) die "DIR cannot be $dir: a node has a /run, /var/lib and /var/log of its own" ;;
	esac
	[ ${#dir} -lt 200 ] || die "DIR has too long a path: $dir"
	kube=$dir/bin/kube
	run=$dir/run
	log=$dir/log
	pki=$dir/pki
	conf=$dir/conf
	mark=$dir/.kaa-cluster
	export KUBECACHEDIR="$run/kubectl" # the default is in HOME
}

need_root() { [ "$(id -u)" = 0 ] || die "needs root, to make namespaces and network interfaces"; }

# lock: one "up" or "down" at a time for each DIR. Descriptor 9 holds the lock, in
# the caller and in each "node" that it calls; what "start" starts does not have it.
lock() {
	exec 9>>"$mark"
	flock --wait 20 9 || die "another up or down is at work on $dir"
}

# owner: the DIR of the cluster that runs on this machine, as its bridge records it.
owner() { cat "/sys/class/net/$BRIDGE/ifalias" 2>/dev/null; }
is_owner() { [ "$(owner)" = "$dir" ]; }

# taken PORT: whether a program listens where the control plane does. Other loopback addresses do not count.
taken() { ss -Hltn "sport = :$1" | grep -qE " (\*|0\.0\.0\.0|\[::\]|127\.0\.0\.1|$HOST_IP):$1 "; }

# ended: whether the cluster on this machine has no live part. Each node is a port of the bridge, even while it is cut off.
ended() { [ -z "$(ls "/sys/class/net/$BRIDGE/brif")" ] && ! taken 2379 && ! taken 6443; }

kubectl() { "$kube" kubectl --kubeconfig "$conf/admin.conf" "$@"; }

kube_version() { sed -n 's,^\tk8s.io/kubernetes ,,p' "$here/kubernetes/go.mod"; }

# kube_cached: where "build" keeps the executable that is built from these sources.
kube_cached() {
	key=$(cd "$here/kubernetes" && cat main.go go.mod go.sum | sha256sum | cut -c1-16)
	echo "$cache/kube-$key"
}

# --- processes ----------------------------------------------------------------
# run/NAME.pid has the id and the start time of a process, which together are
# never those of another process; log/NAME.log has its output.

# process PID: its state (a letter) and its start time.
process() { sed 's/.*) //' "/proc/$1/stat" 2>/dev/null | cut -d ' ' -f 1,20; }

# running NAME: whether the process lives. Sets pid. A process that has ended counts
# as gone even if no process has collected its exit status yet.
running() {
	pid='' began=''
	[ -s "$run/$1.pid" ] && read -r pid began <"$run/$1.pid" || return 1
	case $(process "$pid") in
	Z*) return 1 ;;
	?" $began") return 0 ;;
	*) return 1 ;;
	esac
}

# start NAME COMMAND...: runs it in the background unless it already runs.
start() {
	name=$1
	shift
	running "$name" && return
	setsid "$@" >>"$log/$name.log" 2>&1 </dev/null 9>&- &
	echo "$! $(process $! | cut -d ' ' -f 2)" >"$run/$name.pid"
}

# stop NAME [SIGNAL]: signals the process and waits until it is gone.
stop() {
	if running "$1"; then
		kill "-${2:-TERM}" "$pid" 2>/dev/null || true
		wait_gone "$1" || kill -KILL "$pid" 2>/dev/null || true
		wait_gone "$1" || die "process $pid ($1) does not end"
	fi
	rm -f "$run/$1.pid"
}

wait_gone() {
	for _ in $(seq 100); do
		running "$1" || return 0
		sleep 0.1
	done
	return 1
}

# await SECONDS NAME COMMAND...: repeats the command until it succeeds. Fails if
# that takes too long or the process NAME ends.
await() {
	left=$(($1 * 5)) name=$2
	shift 2
	until ("$@") >/dev/null 2>&1; do
		left=$((left - 1))
		running "$name" && [ $left -gt 0 ] && sleep 0.2 && continue
		running "$name" && why="is not ready in time" || why="ended"
		warn "$name $why; $log/$name.log ends with:"
		tail -n 8 "$log/$name.log" >&2 || true
		exit 1
	done
}

# --- certificates ---------------------------------------------------------------

# certificate NAME SUBJECT [ALTERNATIVE-NAMES]: a key, and a certificate signed by the cluster's CA.
certificate() {
	[ ! -s "$pki/$1.crt" ] || return 0
	{
		echo "basicConstraints=critical,CA:FALSE"
		echo "keyUsage=critical,digitalSignature"
		echo "extendedKeyUsage=clientAuth,serverAuth"
		[ -z "${3:-}" ] || echo "subjectAltName=$3"
	} >"$pki/$1.ext"
	openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes \
		-keyout "$pki/$1.key" -subj "$2" -out "$pki/$1.csr" 2>/dev/null
	openssl x509 -req -in "$pki/$1.csr" -CA "$pki/ca.crt" -CAkey "$pki/ca.key" \
		-set_serial "0x$(openssl rand -hex 8)" -days 3650 -extfile "$pki/$1.ext" \
		-out "$pki/$1.new" 2>/dev/null
	mv "$pki/$1.new" "$pki/$1.crt"
	rm "$pki/$1.csr" "$pki/$1.ext"
}

# kubeconfig NAME SUBJECT: a client certificate, and conf/NAME.conf which has it.
kubeconfig() {
	certificate "$1" "$2"
	[ ! -s "$conf/$1.conf" ] || return 0
	cat >"$conf/$1.new" <<YAML
apiVersion: v1
kind: Config
current-context: kaa
contexts: [{name: kaa, context: {cluster: kaa, user: $1}}]
clusters:
- name: kaa
  cluster:
    server: https://$HOST_IP:6443
    certificate-authority-data: $(base64 -w0 <"$pki/ca.crt")
users:
- name: $1
  user:
    client-certificate-data: $(base64 -w0 <"$pki/$1.crt")
    client-key-data: $(base64 -w0 <"$pki/$1.key")
YAML
	chmod 600 "$conf/$1.new"
	mv "$conf/$1.new" "$conf/$1.conf"
}
