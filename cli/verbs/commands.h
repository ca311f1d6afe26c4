/* The verbs. Each is called as main is, with its own name as argv[0], and returns the
 * exit code. */
#ifndef CLI_COMMANDS_H
#define CLI_COMMANDS_H

int dw_cmd_apply(int argc, char **argv);
int dw_cmd_bench(int argc, char **argv);
int dw_cmd_cache(int argc, char **argv);
int dw_cmd_convert(int argc, char **argv);
int dw_cmd_cp(int argc, char **argv);
int dw_cmd_diff(int argc, char **argv);
int dw_cmd_follow(int argc, char **argv);
int dw_cmd_gc(int argc, char **argv);
int dw_cmd_inspect(int argc, char **argv);
int dw_cmd_keygen(int argc, char **argv);
int dw_cmd_log(int argc, char **argv);
int dw_cmd_mirror(int argc, char **argv);
int dw_cmd_publish(int argc, char **argv);
int dw_cmd_pull(int argc, char **argv);
int dw_cmd_recover(int argc, char **argv);
int dw_cmd_repair(int argc, char **argv);
int dw_cmd_serve_status(int argc, char **argv);
int dw_cmd_squash(int argc, char **argv);
int dw_cmd_stats(int argc, char **argv);
int dw_cmd_status(int argc, char **argv);
int dw_cmd_synth(int argc, char **argv);
int dw_cmd_verify(int argc, char **argv);

#endif
