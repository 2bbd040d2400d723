#!/usr/bin/env bash
# The command of a pod of leader-worker-set.yaml. A worker runs sshd for the leader's mpirun. The
# leader waits for its workers, then starts one rank per pod with the given program and flags.
# LeaderWorkerSet sets LWS_GROUP_SIZE, LWS_WORKER_INDEX and LWS_LEADER_ADDRESS.
set -euo pipefail
port=2222 keys=$HOME/.ssh
install -d -m 700 "$keys"
# All pods share one key, as host key and as user key.
install -m 600 /ssh/id_ed25519 "$keys/id_ed25519"
ssh-keygen -y -f "$keys/id_ed25519" >"$keys/authorized_keys"
printf '* %s\n' "$(cut -d ' ' -f 1,2 "$keys/authorized_keys")" >"$keys/known_hosts"

if [ "$LWS_WORKER_INDEX" != 0 ]; then
    exec /usr/sbin/sshd -D -e -p "$port" -h "$keys/id_ed25519" \
        -o PasswordAuthentication=no -o UsePAM=no -o PidFile=none -o AuthorizedKeysFile="$keys/authorized_keys"
fi

# The leader is NAME-0.SERVICE.NAMESPACE, its workers are NAME-0-1.SERVICE.NAMESPACE and so on.
leader=${LWS_LEADER_ADDRESS%%.*} domain=${LWS_LEADER_ADDRESS#*.}
by_ssh=(-p "$port" -i "$keys/id_ed25519" -o UserKnownHostsFile="$keys/known_hosts" -o BatchMode=yes -o ConnectTimeout=5)
hosts=localhost:1
for index in $(seq 1 $((LWS_GROUP_SIZE - 1))); do
    worker=$leader-$index.$domain
    until ssh "${by_ssh[@]}" "$worker" true; do
        echo "waiting for $worker"
        sleep 2
    done
    hosts=$hosts,$worker:1
done
export OMPI_MCA_plm_rsh_args="${by_ssh[*]}"
exec mpirun -n "$LWS_GROUP_SIZE" --host "$hosts" --bind-to none "$@"
