#!/usr/bin/env bash
# Copy partition 0 of topic $1 to topic $2 exactly once, by curl alone. Stop it anywhere, start it again.
set -euo pipefail
node=${RAFTLOG_SERVERS:-localhost:8082} && node=http://${node%%,*} && id=copy-$1-$2
json() { python3 -c "import json, sys; d = json.load(sys.stdin); print($1)"; }
post() { # post PATH BODY → the answer; fails if a part of the request is refused
  curl -fsS --retry 9 --retry-connrefused -d "$2" "$node$1" | grep -v '"error_code":[1-9]'
}
producer=$(post "/v1/transactions/$id/init" '{}') # fences an earlier run, and aborts what it left open
while :; do
  committed=$(post "/v1/groups/$id/committed" '{"topics": {"'"$1"'": [0]}}')
  start=$(json 'max(0, d["offsets"][0]["offset"])' <<<"$committed")
  found=$(curl -fsS "$node/topics/$1/partitions/0/records?offset=$start&max_records=100&isolation=read_committed")
  [ "$found" != "[]" ] || break
  records=$(json 'json.dumps([{"key": r["key"], "value": r["value"]} for r in d])' <<<"$found")
  place='"topic": "'$1'", "partition": 0, "offset": '$(json 'd[-1]["offset"] + 1' <<<"$found")
  query=$(json '"&".join(f"{name}={value}" for name, value in d.items())' <<<"$producer")
  post "/topics/$2/partitions/0?transactional_id=$id&sequence=0&$query" "{\"records\": $records}"
  post "/v1/transactions/$id/offsets" "${producer%\}*}, \"group\": \"$id\", \"offsets\": [{$place}]}"
  producer=$(post "/v1/transactions/$id/commit" "$producer")
done
