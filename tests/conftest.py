"""Its place puts this folder on the path, so that tests in every folder below find `helpers`."""
