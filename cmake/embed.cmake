# Turns a file into a C array:
#
#     cmake -D FILE=page.html -D OUT=page.c -D NAME=dw_page -P embed.cmake
#
# `const unsigned char NAME[]`, ended by a NUL, and `const size_t NAME_bytes`, without it.
file(READ "${FILE}" hex HEX)
string(LENGTH "${hex}" digits)
math(EXPR bytes "${digits} / 2")
string(REGEX REPLACE "(..)" "0x\\1," array "${hex}")
string(REGEX REPLACE "((0x..,)(0x..,)?(0x..,)?(0x..,)?(0x..,)?(0x..,)?(0x..,)?(0x..,)?)"
       "    \\1\n" array "${array}")
file(WRITE "${OUT}" "#include <stddef.h>\n\n"
     "extern const unsigned char ${NAME}[];\nextern const size_t ${NAME}_bytes;\n\n"
     "const unsigned char ${NAME}[] = {\n${array}    0};\nconst size_t ${NAME}_bytes = ${bytes};\n")
