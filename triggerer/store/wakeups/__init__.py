"""Who is woken by which commit, in this process and in others."""
