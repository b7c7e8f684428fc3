#!/bin/sh
# One word for all programs: `llmgw ctl nodes` runs `llmgw-ctl.pyz nodes` (or `llmgw-ctl`, as installed) from beside this file.
set -u
here=$(dirname -- "$(readlink -f -- "$0")")
role=${1-}
case $role in
    onboard | provision) program=llmgw-$role-node ;;
    ctl | agent | router | onboard-node | provision-node) program=llmgw-$role ;;
    '' | -h | --help)
        echo "usage: llmgw ctl|agent|router|onboard|provision ARGUMENTS..."
        echo "Each role is a program of its own: llmgw ctl --help, llmgw agent --help, ..."
        exit 0 ;;
    -V | --version | version) program=llmgw-ctl; set -- ctl version ;;
    *)
        echo "llmgw: no role is called '$role'" >&2
        echo "  hint: llmgw ctl|agent|router|onboard|provision ARGUMENTS..." >&2
        exit 2 ;;
esac
shift
for file in "$here/$program.pyz" "$(dirname -- "$0")/$program" "$here/$program"; do
    [ -x "$file" ] && exec "$file" "$@"
done
echo "llmgw: $program.pyz is not in $here" >&2
echo "  hint: copy it there, beside llmgw" >&2
exit 3
