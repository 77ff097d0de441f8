"""logparity inside other people's trainers, and their files read back: verl, TRL, miles and slime, prime-rl.

Every module here imports without its host installed.
"""
