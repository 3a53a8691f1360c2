#!/usr/bin/env bash
# The tests that need a CUDA device, a file at a time, each with its time and its log; the table is
# last. Needs a device and an installed stoker. `tools/gpu_tests.sh [FILE...]`: names between test_gpu_
# and .py (flash, experts, ...), by default all but the long ones; JOBS processes side by side,
# LIMIT_S seconds a file, logs and results in OUT.
set -u
cd "$(dirname "$0")/.."
names=("$@")
if [ ${#names[@]} -eq 0 ]; then
    for file in tests/py/gpu/test_gpu_*.py; do
        name=${file##*test_gpu_}
        [ "$name" = long.py ] || names+=("${name%.py}")
    done
fi
out=${OUT:-/tmp}
table=""
bad=0
for name in "${names[@]}"; do
    from=$SECONDS
    timeout "${LIMIT_S:-300}" "${PYTHON:-python3}" -m pytest -q -p no:cacheprovider -n "${JOBS:-4}" \
        "tests/py/gpu/test_gpu_$name.py" >"$out/gpu-$name.txt" 2>&1
    rc=$?
    # Without a device everything is skipped, which is no success.
    [ $rc = 0 ] && tail -n 1 "$out/gpu-$name.txt" | grep -q ' passed' || bad=1
    line=$(printf '%-10s exit %3d, %3d s: %s' "$name" $rc $((SECONDS - from)) \
        "$(tail -n 1 "$out/gpu-$name.txt")")
    echo "$line"
    table+=$line$'\n'
done
printf '\n%s' "$table"
exit $bad
