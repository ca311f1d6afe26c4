#!/bin/sh
# scripts/manual.sh DELTAWIRE PAGE: prints the manual page with the synopsis
# and the lists of options that the command DELTAWIRE has now. They stand between lines
#
#     .\" synopsis                  and   .\" end
#     .\" options VERB [GROUP...]   and   .\" end
#
# Without GROUPs: all options but those that many verbs share.
set -eu
command=$1
for verb in $("$command" --options); do
    "$command" "$verb" --help | sed -n 's/^usage: deltawire /u\t/p; s/^       deltawire /u\t/p'
    "$command" --options "$verb" | sed "s/^/o\t$verb\t/"
done | awk -F '\t' '
    function item(letter, name, value) {
        text = ".It " (letter == "-" ? "" : "Fl " letter " , ") "Fl -" name
        if (name == "base" && value == "NAME") return text " Ns Op = Ns Ar NAME"
        return text (value == "" ? "" : " Ar " value)
    }
    function escape(text) {
        gsub(/\\/, "\\e", text)
        return text ~ /^[.\047]/ ? "\\&" text : text
    }
    function print_synopsis(    i, word) {
        for (i = 1; i <= n_usage; i++) {
            word = usage[i]
            sub(/ .*/, "", word)
            print ".Nm\n.Cm " word "\n" substr(usage[i], length(word) + 2)
        }
    }
    function print_options(verb, groups,    i) {
        print ".Bl -tag -width Ds"
        for (i = 1; i <= n_options; i++)
            if (of[i] == verb && (groups == "" ? group[i] !~ /^(common|trust|store)$/ \
                                               : index(groups " ", " " group[i] " ") > 0))
                print head[i] "\n" help[i]
        print ".El"
    }
    FILENAME == "-" && $1 == "u" { usage[++n_usage] = $2; next }
    FILENAME == "-" {
        of[++n_options] = $2
        group[n_options] = $3
        head[n_options] = item($4, $5, $6)
        help[n_options] = escape($7)
        next
    }
    /^\.\\" end$/ { skips = 0 }
    skips { next }
    { print }
    /^\.\\" synopsis$/ { print_synopsis(); skips = 1 }
    /^\.\\" options / {
        split($0, word, " ")
        groups = $0
        sub(/^\.\\" options [^ ]*/, "", groups)
        print_options(word[3], groups)
        skips = 1
    }' - "$2"
