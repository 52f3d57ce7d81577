#!/bin/bash
# Wide registers may be used only in functions of their own instruction set (Highway's namespaces
# N_AVX2, N_AVX3, ...). The linker could select a shared inline function that was compiled with them
# for every caller, and the program would then crash on an older machine.
# Usage: isa_leak_test.sh ARCHIVE_OR_OBJECT...
set -euo pipefail

checked=0
for file in "$@"; do
  case "$file" in *.a | *.lo | *.o) ;; *) continue ;; esac
  checked=$((checked + 1))
  listing=$(objdump --disassemble --no-show-raw-insn "$file")
  report=$(awk '
    /^[0-9a-f]+ <.*>:$/ { symbol = $2; next }
    /%[yz]mm[0-9]/ { wide[symbol]++ }
    END {
      own = 0
      for (s in wide) {
        if (s ~ /N_AVX/) own++
        else print "leak: " s " uses wide registers"
      }
      print "own: " own
    }' <<<"$listing")
  if grep -q '^leak:' <<<"$report"; then
    echo "$file:" && grep '^leak:' <<<"$report"
    exit 1
  fi
  if [[ "$(uname -m)" == x86_64 ]] && grep -q '^own: 0$' <<<"$report"; then
    echo "$file: no function uses wide registers, so nothing was checked"
    exit 1
  fi
done
[[ $checked -gt 0 ]] || { echo "no archive given"; exit 1; }
