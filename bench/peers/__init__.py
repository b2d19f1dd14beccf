"""Other people's software in the same run: installed by name into an environment of its own, driven through pipes."""
