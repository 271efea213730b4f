"""The leaderboard: folders with the results of one encoding each, checked by anybody, ranked together."""
