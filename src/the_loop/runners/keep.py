"""What is executed for each delivery: the keeper, in its compiled form. Python compiles a script anew.

The folder of this file comes last in the path: nothing in it hides a module of the standard library.
"""

import sys

if __name__ == "__main__":
    sys.path.append(__file__.rpartition("/")[0])

    import keeper  # type: ignore[import-not-found]

    keeper.execute()
