#!/usr/bin/env bash
# The kernels under compute-sanitizer: memcheck, synccheck, racecheck and initcheck over every op and a
# recorded round. Needs a CUDA device and an installed stoker; `tools/gpu_sanitize.sh [TOOL...]`, with
# SANITIZE_ARGS="teams mixtures --types Q4_K" for some of it.
set -u
cd "$(dirname "$0")/.."
tools=("$@")
[ ${#tools[@]} -gt 0 ] || tools=(memcheck synccheck racecheck initcheck)
bad=0
for tool in "${tools[@]}"; do
    from=$SECONDS
    log=${OUT:-/tmp}/sanitize-$tool.txt
    timeout "${LIMIT_S:-400}" compute-sanitizer --tool "$tool" --error-exitcode 9 --print-limit 20 \
        "${PYTHON:-python3}" tests/py/gpu/sanitize.py ${SANITIZE_ARGS:-} >"$log" 2>&1
    rc=$?
    [ $rc = 0 ] || bad=1
    printf '%-10s exit %d, %s, %d s\n' "$tool" $rc \
        "$(grep -E 'ERROR SUMMARY|RACECHECK SUMMARY' "$log" | tail -1 | sed 's/=* *//')" $((SECONDS - from))
done
exit $bad
