# Two hosts, each a network namespace of its own, with a wire between them: runs torchrun's command "$@" on both, as node 0 and node 1,
# and fails where one fails. It is for `unshare`, with its own namespaces of users, mounts, networks and processes, all of which are gone when
# this ends. 77 says that it can't be had.
{
  mount -t tmpfs none /run &&
  ip netns add first &&
  ip netns add second &&
  ip link add wire netns first type veth peer name wire netns second &&
  ip -n first address add 10.0.0.1/24 dev wire &&
  ip -n second address add 10.0.0.2/24 dev wire &&
  for host in first second; do ip -n $host link set lo up && ip -n $host link set wire up || exit 77; done
} || exit 77
PET_NODE_RANK=1 nsenter --net=/run/netns/second "$@" &
PET_NODE_RANK=0 nsenter --net=/run/netns/first "$@" && wait $!
