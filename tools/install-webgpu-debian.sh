#!/usr/bin/env bash
# Installs what the WebGPU tests and the headless demo need on Debian and is silent where it is there already:
# Chromium (browser tests; it brings SwiftShader), Firefox (tests beside Chromium's) and a Mesa whose software Vulkan
# driver Dawn accepts (Debian 12's own is refused, so it comes from backports).
set -euo pipefail

readonly MESA_MINIMUM=24

missing() {
  local version
  command -v chromium >/dev/null || echo chromium
  command -v firefox-esr >/dev/null || echo firefox-esr
  version=$(dpkg-query -W -f '${Version}' mesa-vulkan-drivers 2>/dev/null || true)
  dpkg --compare-versions "${version:-0}" ge "$MESA_MINIMUM" || echo mesa-vulkan-drivers
}

give_up() {
  echo "warning: $1" >&2
  echo "hint: install Chromium, Firefox, and Mesa's Vulkan drivers $MESA_MINIMUM or newer; without them the tests" >&2
  echo "      marked browser and dawn are skipped and 'make demo HEADLESS=1' cannot run" >&2
  # An unattended run must not pass with those tests left out.
  [ "${CI:-}" = true ] && exit 1
  exit 0
}

# Debian's own entry, with the suite changed: the mirror and the key stay the machine's.
add_backports() {
  local codename=$1 list=/etc/apt/sources.list.d
  [ -e "$list/$codename-backports.sources" ] && return
  if [ -e "$list/debian.sources" ]; then
    awk -v suite="$codename" 'BEGIN { RS = ""; FS = "\n" }
      $0 ~ "(^|\n)Suites:[^\n]*[ \t]" suite "([ \t\n]|$)" {
        for (i = 1; i <= NF; i++) {
          if ($i ~ /^#/) continue
          if ($i ~ /^Suites:/) print "Suites: " suite "-backports"
          else if ($i ~ /^Components:/) print "Components: main"
          else print $i
        }
        exit
      }' "$list/debian.sources" >"$list/$codename-backports.sources"
  else
    sed -nE "s/^(deb .*[ \t])$codename([ \t]+)main.*/\1$codename-backports\2main/p" \
      /etc/apt/sources.list | head -n 1 >"$list/$codename-backports.list"
  fi
}

if ! command -v dpkg-query >/dev/null; then
  give_up "this is not a Debian system: Chromium, Firefox and Mesa are not installed automatically"
fi
packages=$(missing)
[ -n "$packages" ] || exit 0
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
  give_up "missing and not installable without root: ${packages//$'\n'/ }"
fi

export DEBIAN_FRONTEND=noninteractive
echo "installing: ${packages//$'\n'/ }"
apt-get update -qq
for package in $packages; do
  suite=()
  if [ "$package" = mesa-vulkan-drivers ]; then
    candidate=$(apt-cache policy "$package" | awk '/Candidate:/ { print $2 }')
    if ! dpkg --compare-versions "${candidate:-0}" ge "$MESA_MINIMUM"; then
      # shellcheck source=/dev/null  # a file of the machine
      codename=$(. /etc/os-release && echo "$VERSION_CODENAME")
      add_backports "$codename"
      apt-get update -qq
      suite=(-t "$codename-backports")
    fi
  fi
  apt-get install -y -qq --no-install-recommends "${suite[@]}" "$package" >/dev/null
done
[ -z "$(missing)" ] || give_up "installed, yet still missing: $(missing | tr '\n' ' ')"
