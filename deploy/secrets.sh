#!/bin/sh
# Draws every secret of a deployment into a folder: deploy/secrets.sh FOLDER [STORE-HOST]
#
# Compose mounts its files, kustomize makes a Secret of them. They are readable, for containers run as other users;
# the folder is not.
set -eu

folder=${1:?usage: secrets.sh FOLDER [STORE-HOST]}
store=${2:-store}
here=$(cd "$(dirname "$0")" && pwd)

if [ -e "$folder" ]; then
    echo "secrets.sh: $folder is there already: secrets in use are not drawn again" >&2
    exit 1
fi

draw() { od -An -N32 -tx1 /dev/urandom | tr -d ' \n'; }
digest() { printf %s "$1" | sha256sum | cut -d' ' -f1; }
digest_of() { digest "$(cat "$folder/$1")"; }

(umask 077 && mkdir -p "$folder")
umask 022

# The store's users, as deploy/redis says which there are.
cp "$here/redis/users.acl" "$folder/users.acl"
for user in ADMIN RLSTM REPLICA SENTINEL; do
    password=$(draw)
    sed -i "s/>$user-PASSWORD/#$(digest "$password")/" "$folder/users.acl"
    case $user in
    ADMIN) printf %s "redis://admin:$password@$store:6379" >"$folder/admin_redis_url" ;;
    RLSTM) printf %s "redis://rlstm:$password@$store:6379" >"$folder/rlstm_redis_url" ;;
    *) printf %s "$password" >"$folder/$(echo "$user" | tr '[:upper:]' '[:lower:]')_password" ;;
    esac
done

# Keys of the servers: for people, for Prometheus, for the probe.
for key in api_key metrics_key probe_key grafana_password; do
    draw >"$folder/$key"
done
cat >"$folder/api_keys.json" <<END
[
  {"sha256": "$(digest_of api_key)", "tenant": "default", "scopes": ["score", "generate", "sessions"]},
  {"sha256": "$(digest_of metrics_key)", "tenant": "metrics", "scopes": ["admin"]},
  {"sha256": "$(digest_of probe_key)", "tenant": "probe", "scopes": ["generate"]}
]
END
chmod 444 "$folder"/*
echo "secrets.sh: drawn into $folder; the key for people is in $folder/api_key"
