#!/usr/bin/env bash
# Run each line of $COMMANDS as a command of onnxq. Print its output, and put it into the summary of the job.
# Exits with the greatest exit code. All commands run, also behind one that fails.
set -u
summary="${GITHUB_STEP_SUMMARY:-/dev/null}"
worst=0
while IFS= read -r line; do
  read -r -a words <<< "$line"
  [ "${#words[@]}" -gt 0 ] || continue
  output="$(onnxq "${words[@]}" 2>&1)" && code=0 || code=$?
  printf '$ onnxq %s\n%s\n' "$line" "$output"
  case "$code" in
    0) verdict="passed" ;;
    1) verdict="failed" ;;
    *) verdict="could not run (exit code $code)" ;;
  esac
  # A fence longer than any in the output: nothing of it is read as Markdown.
  printf '### onnxq %s: %s\n\n``````text\n%s\n``````\n\n' "$line" "$verdict" "$output" >> "$summary"
  [ "$code" -le "$worst" ] || worst="$code"
done <<< "${COMMANDS:-}"
exit "$worst"
