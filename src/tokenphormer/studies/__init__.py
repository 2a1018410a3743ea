"""The paper's appendix as small studies: each is one command, seed-exact, and minutes at most on two cores."""
