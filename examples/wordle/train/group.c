#include "group.h"

#include <stdlib.h>

played_group *played_group_new(size_t n_games)
{
    played_group *group = calloc(1, sizeof *group + n_games * sizeof group->games[0]);
    if (group) {
        group->version = UINT64_MAX;
        group->n_games = n_games;
    }
    return group;
}

float played_game_reward(const played_game *game, uint32_t first)
{
    float sum = 0;
    for (uint32_t i = first; i < game->n_guesses; i++)
        sum += game->guesses[i].reward;
    return sum;
}
